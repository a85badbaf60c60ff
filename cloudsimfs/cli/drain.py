"""Waiting until all that was written in a mount is on the service, and saying what is not.

A thread writes to the mount's `flush` file and waits there; the main thread shows how far it is.
"""

from __future__ import annotations

import errno
import math
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import click

from cloudsimfs.cli.mounts import read_status
from cloudsimfs.control.simulations import SIMULATIONS
from cloudsimfs.control.state import STATE
from cloudsimfs.errors import MountError
from cloudsimfs.text import agree, count, mib, printable

PROGRESS = 0.2  # seconds between updates of the progress bar
MOST_NAMES = 3  # paths in one line


class Offline(MountError):
    """Nothing is uploaded by this mount; the next one without --offline does it."""


def drain(directory: Path, remedy: str, *, timeout: float = math.inf) -> bool:
    """Have everything uploaded, and show the progress. Raises MountError with what remains; Ctrl-C prints that, too.

    Returns False if a file is still open for writing. `remedy` tells the user what to do instead of waiting. The wait
    ends `timeout` seconds later as if an upload had failed; one write to `flush` is not cut short. Raises Offline if
    the mount is offline and something waits.
    """
    outcome: Future[bool] = Future()
    deadline = time.monotonic() + timeout
    threading.Thread(target=_flush, args=(directory, remedy, outcome, deadline), daemon=True).start()
    try:
        _show_progress(directory, outcome)
        return outcome.result()
    except KeyboardInterrupt:
        click.echo(f"\nstill mounted: {printable(_remains(directory, remedy))}", err=True)
        raise


def _flush(directory: Path, remedy: str, outcome: Future[bool], deadline: float) -> None:
    """Wait until all is stored: one write to `flush` after the other, each of which the mount answers in time."""
    while True:
        try:
            (directory / STATE / "flush").write_text("1")
            outcome.set_result(True)
        except TimeoutError:
            if time.monotonic() < deadline:
                continue
            outcome.set_exception(MountError(_remains(directory, remedy)))
        except OSError as error:
            if error.errno == errno.EROFS:
                outcome.set_result(True)  # nothing is written through this mount
            elif error.errno == errno.EBUSY:
                outcome.set_result(False)
            elif error.errno == errno.EAGAIN:
                outcome.set_exception(MountError(_remains(directory, remedy)))
            elif error.errno == errno.EHOSTUNREACH:  # an online mount answers EAGAIN, with what has failed
                outcome.set_exception(Offline(_last_error(directory)))
            else:
                outcome.set_exception(error)
        return


def _show_progress(directory: Path, outcome: Future[bool]) -> None:
    """Show a bar that counts bytes; a delete counts as one byte."""
    status = read_status(directory)
    total = _left(status)
    with click.progressbar(length=total, label="uploading", hidden=status["offline"] or not total) as bar:
        while not wait([outcome], timeout=PROGRESS).done:
            bar.update(max(0, total - _left(read_status(directory)) - bar.pos))
        if outcome.exception() is None:
            bar.update(total - bar.pos)


def _left(status: dict[str, Any]) -> int:
    return sum(max(1, job["size"] - job["sent"]) for job in status["pending"])


def amount(jobs: list[dict[str, Any]]) -> str:
    """The number and the size of jobs, which are those in `pending` of the status."""
    return f"{count(len(jobs), 'operation')} ({mib(sum(job['size'] - job['sent'] for job in jobs))})"


def _remains(directory: Path, remedy: str) -> str:
    status = read_status(directory)
    jobs = status["pending"]
    reason = _reason(directory, jobs)
    if not jobs:  # what was refused waits for nothing
        return f"{reason}; `cloudsimfs recover` lists what is kept, `cloudsimfs umount --no-wait` unmounts"
    return (
        f"not on the service yet: {amount(jobs)}{f': {reason}' if reason else ''}. They are safe in "
        f"{status['cache']['directory']} and go on while it is mounted; {remedy}"
    )


def _reason(directory: Path, jobs: list[dict[str, Any]]) -> str:
    return next((job["error"] for job in jobs if job["error"]), "") or _last_error(directory)


def _last_error(directory: Path) -> str:
    return (directory / SIMULATIONS / "error").read_text().strip()


def left_behind(directory: Path) -> str:
    """One line that says what an unmount now leaves for the next mount."""
    status = read_status(directory)
    jobs = status["pending"]
    if not jobs:  # what was refused waits for nothing
        return f"{_last_error(directory)}; `cloudsimfs recover` lists what is kept"
    names = ", ".join(f"/{job['path']}" for job in jobs[:MOST_NAMES])
    more = f" and {len(jobs) - MOST_NAMES} more" if len(jobs) > MOST_NAMES else ""
    waits = agree(len(jobs), "waits", "wait")
    reason = _reason(directory, jobs)
    online = " without --offline" if status["offline"] else f": {reason}" if reason else ""
    return f"{amount(jobs)} {waits} in {status['cache']['directory']} for the next mount ({names}{more}){online}"
