"""Running as a daemon: in the background, with word to systemd, and with an answer to a signal.

`run_in_background` must run before the first thread starts: it forks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from cloudsimfs.errors import CloudsimfsError, Crashed, MountError
from cloudsimfs.host.logs import set_up_logging
from cloudsimfs.redact import redact

READY, FAILED = b"ready ", b"failed "  # how the daemon's one message to its parent begins; a text follows

Serve = Callable[[Callable[[str], None]], None]
"""Serves until the end. Calls its argument once it is ready, with a note for the user, which may be empty."""


def run_in_background(serve: Serve, *, log_file: Path, level: str, log_format: str) -> str:
    """Run `serve(ready)` in a daemon. Returns the note that it called `ready` with.

    Raises MountError with the daemon's own error, Crashed if it died of a fault of ours, and ConfigError if the log
    file cannot be made.
    """
    set_up_logging(log_file, level, log_format)
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.close(readable)
        _be_daemon(serve, writable)
    os.close(writable)
    with open(readable, "rb") as pipe:
        said = pipe.read()
    text = said.decode("utf-8", "replace")
    if said.startswith(READY):
        return text[len(READY) :]
    if said.startswith(FAILED):
        raise MountError(text[len(FAILED) :])
    raise Crashed(f"{text or 'the daemon died'}; see {log_file}")


def _be_daemon(serve: Serve, writable: int) -> NoReturn:
    """The child's whole life; never returns to the caller's code."""
    status = 1
    try:
        os.setsid()
        os.chdir("/")
        errors = _redirect_output()

        def ready(note: str) -> None:
            _tell(writable, READY, note)
            os.close(writable)

        try:
            serve(ready)
            status = 0
        except CloudsimfsError as error:
            logging.getLogger(__name__).error("%s", error)
            printed = os.pread(errors, 4096, 0).decode("utf-8", "replace").strip()
            _tell(writable, FAILED, f"{error}{': ' if printed else ''}{printed.splitlines()[-1] if printed else ''}")
        except Exception as error:  # the parent must hear of any failure
            logging.getLogger(__name__).exception("the mount failed")
            _tell(writable, b"", f"unexpected {type(error).__name__}: {error}")
    finally:
        logging.shutdown()
        os._exit(status)


def _tell(writable: int, how: bytes, message: str) -> None:
    with contextlib.suppress(OSError):  # the parent has gone, or has already read "ready"
        os.write(writable, how + redact(message).encode())


def _redirect_output() -> int:
    """Detach from the terminal. Returns the file that collects what libfuse prints on stderr."""
    errors = os.memfd_create("stderr", os.MFD_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR)
    for fd, target in ((0, null), (1, null), (2, errors)):
        os.dup2(target, fd)
    os.close(null)
    return errors


def notify_systemd(state: str) -> None:
    """Tell the service manager that started us, if one did: sd_notify(3) is a datagram to the socket it names."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect("\0" + address[1:] if address.startswith("@") else address)
        sender.send(state.encode())


def on_signal(number: signal.Signals, act: Callable[[], None]) -> None:
    """Run `act` in a thread of its own at each signal. To be called before other threads start.

    A Python handler would never run: the main thread is inside libfuse until the unmount.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})  # every later thread inherits it

    def wait() -> None:
        while True:
            signal.sigwait({number})
            act()

    threading.Thread(target=wait, name="signals", daemon=True).start()
