"""`runs`, `launch`, `stop`, `sync`, `log`, `wait` and `options`: runs by commands, with a mount or without."""

from __future__ import annotations

import codecs
import errno
import functools
import html
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from cloudsimfs.cli.group import FAILED, main
from cloudsimfs.cli.options import account_options, settings_of
from cloudsimfs.cli.runfiles import RunFiles, reach
from cloudsimfs.cli.table import echo_table
from cloudsimfs.errors import CloudsimfsError, NotFound
from cloudsimfs.runs.options import NAMES
from cloudsimfs.text import printable, printable_lines

_decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")  # a block may end amid a letter
EVERY = 0.5  # seconds between reads of what is followed; they cost no call
NOTIFY_BOUND = 5.0  # seconds
COLUMNS = ("id", "status", "script", "cpu", "ram", "folder", "started", "ended")
GOING_ON = ("PENDING", "RUNNING", "STOPPING")
ENDED = {"COMPLETED": 0, "ERROR": 3, "STOPPED": 4}
TIMED_OUT = 5
WAIT_EPILOG = """\
Exit status: 0 COMPLETED; 3 ERROR; 4 STOPPED; 5 not ended when --timeout was over; 1 its status cannot be read. A run
can be COMPLETED although the solver failed: its log decides.
"""


def _run_command(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which mount or account is meant, and pass the `RunFiles` that reach it.

    The innermost decorator, so that the command's own options come first in its help.
    """

    @account_options
    @click.option(
        "--mount",
        "top",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="The mount to use; default: the one around you, or the only one. With --url or --profile: none.",
    )
    @functools.wraps(command)
    def wrapped(top: Path | None, **given: Any) -> None:
        direct = bool(given["url"] or given["profile"])
        with reach(top, settings_of(given), direct=direct) as files:
            command(files, **given)

    return wrapped


_json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")
_run_argument = click.argument("run", metavar="RUN")
_newest_run_argument = click.argument("run", metavar="[RUN]", required=False)


def _all_runs(files: RunFiles) -> list[dict[str, Any]]:
    """The newest first."""
    listed: list[dict[str, Any]] = json.loads(files.read("runs.json"))
    return listed


def _run_id(files: RunFiles, run: str | None) -> int:
    """A run named by its id, by its folder (the newest there), or not at all (the newest)."""
    if run is not None and run.isascii() and run.isdigit():
        return int(run)
    folder = None if run is None else files.storage_path(run)
    for info in _all_runs(files):
        if folder is None or info["folder"].strip("/") == folder:
            return int(info["id"])
    raise NotFound(
        "there are no runs" if run is None else f"no run in a folder {run!r}; `cloudsimfs runs` lists them"
    )


@main.command()
@_json_option
@_run_command
def runs(files: RunFiles, as_json: bool) -> None:
    """List the runs, the newest first."""
    if as_json:
        click.echo(printable_lines(files.read("runs.json")), nl=False)
        return
    rows = [line.split() for line in files.read("runs").splitlines()]
    echo_table([name.upper() for name in COLUMNS], rows)


@main.command()
@click.argument("name", required=False, type=click.Choice(NAMES))
@_json_option
@_run_command
def options(files: RunFiles, name: str | None, as_json: bool) -> None:
    """List the values that a launch may ask for: cpu, ram and scripts."""
    values = {each: files.read(f"options/{each}").splitlines() for each in ([name] if name else NAMES)}
    if as_json:
        click.echo(json.dumps(values))
    elif name:
        click.echo("\n".join(map(printable, values[name])))
    else:
        echo_table(["NAME", "VALUES"], [[option, " ".join(words)] for option, words in values.items()])


@main.command()
@click.argument("folder")
@click.option("--cpu", required=True, help="Number of vCPUs.")
@click.option("--ram", required=True, help="RAM class.")
@click.option("--script", required=True, help="The software.")
@click.option("--nopre", type=click.Choice(["0", "1"]), help="0: a SPOT instance, 1: a REGULAR one.")
@click.option("--mesh", help="A folder with the mesh (API v2).")
@click.option("--key", help="Any word; a launch with the same key is never made twice.")
@click.option("--force", is_flag=True, help="Launch although an earlier launch of the same got no answer.")
@click.option("--yes", is_flag=True, help="Do not ask whether a run of another machine is this key's.")
@click.option("--dry-run", is_flag=True, help="Check everything, but start nothing.")
@_json_option
@_run_command
def launch(files: RunFiles, folder: str, as_json: bool, **words: str | bool | None) -> None:
    """Start a run in FOLDER once all its files are uploaded, and print its id."""
    asked = {name.replace("_", "-"): "1" if value is True else value for name, value in words.items() if value}
    asked["folder"] = files.storage_path(folder)
    if "mesh" in asked:
        asked["mesh"] = files.storage_path(str(asked["mesh"]))
    answer = _ask_to_launch(files, asked).split()[0].removeprefix("id=")
    run_id = int(answer) if answer.isdigit() else None
    if as_json:
        click.echo(json.dumps({"id": run_id}))
    else:
        click.echo("the launch is valid; nothing was started" if words["dry_run"] and run_id is None else run_id)


def _ask_to_launch(files: RunFiles, asked: dict[str, Any]) -> str:
    """The answer to a launch. Whether one that may be a repetition is meant is asked on a terminal."""
    try:
        return files.ask("launch", json.dumps(asked))
    except CloudsimfsError as error:
        if not (_exists(error) and sys.stdin.isatty()):
            raise
        click.confirm(f"{printable(str(error))}. Launch another run now?", abort=True, err=True)
    return files.ask("launch", json.dumps(asked | {"yes": "1"}))


def _exists(error: CloudsimfsError) -> bool:
    cause = error.__cause__
    return error.errno == errno.EEXIST or (isinstance(cause, OSError) and cause.errno == errno.EEXIST)


@main.command()
@_run_argument
@click.option("--hard", is_flag=True, help="Kill it; nothing is saved.")
@click.option("--yes", is_flag=True, help="Do not ask before a hard stop.")
@_run_command
def stop(files: RunFiles, run: str, hard: bool, yes: bool) -> None:
    """Stop RUN (an id, or a folder) at its current iteration and save the results."""
    run_id = _run_id(files, run)
    if hard and not yes and sys.stdin.isatty():
        click.confirm(f"Kill run {run_id}? What it has computed since its last save is lost", abort=True)
    files.write(f"{run_id}/stop", "hard" if hard else "soft")
    click.echo(f"run {run_id} is told to stop{'' if hard else '; saving its results may take minutes'}", err=True)


@main.command()
@_run_argument
@_run_command
def sync(files: RunFiles, run: str) -> None:
    """Make RUN (an id, or a folder) save its current results and continue."""
    run_id = _run_id(files, run)
    files.write(f"{run_id}/sync", "1")
    click.echo(f"run {run_id} is told to save its results", err=True)


@main.command()
@_newest_run_argument
@click.option("--follow", "-f", is_flag=True, help="Continue until the run has ended.")
@_run_command
def log(files: RunFiles, run: str | None, follow: bool) -> None:
    """Print the log of RUN (an id, or a folder; default: the newest run)."""
    run_id = _run_id(files, run)
    shown = 0
    if follow:
        with files.follow(f"{run_id}/status") as status, files.follow(f"{run_id}/log") as output:
            while True:
                ended = not _is_going_on(status)
                block = output(shown)
                shown += _show(block)
                if ended and not block:
                    break
                if not block:
                    time.sleep(EVERY)
    with files.follow(f"{run_id}/log") as output:  # opened when the run had ended: all of it
        while block := output(shown):
            shown += _show(block)
    if follow:
        _notify(_end_of(files, run_id)[0])


def _show(block: bytes) -> int:
    """Print a part of a log: byte for byte, but for a terminal without what would control it."""
    shown = block
    if sys.stdout.isatty():
        shown = printable_lines(_decoder.decode(block).replace("\r\n", "\n")).encode()
    sys.stdout.buffer.write(shown)
    sys.stdout.buffer.flush()
    return len(block)


def _is_going_on(status: Callable[[int], bytes]) -> bool:
    return status(0).decode().strip() in GOING_ON


@main.command(epilog=WAIT_EPILOG)
@_newest_run_argument
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer than this.")
@_json_option
@_run_command
def wait(files: RunFiles, run: str | None, timeout: float | None, as_json: bool) -> None:
    """Wait until RUN (an id, or a folder; default: the newest run) has ended, and say how."""
    run_id = _run_id(files, run)
    until = None if timeout is None else time.monotonic() + timeout
    with files.follow(f"{run_id}/status") as status:
        while _is_going_on(status):
            if until is not None and time.monotonic() >= until:
                click.echo(printable(f"run {run_id} is still {status(0).decode().strip()}"), err=True)
                sys.exit(TIMED_OUT)
            time.sleep(EVERY)
    sentence, info = _end_of(files, run_id)
    click.echo(json.dumps(info) if as_json else sentence)
    _notify(sentence)
    sys.exit(ENDED.get(info["status_name"], FAILED))


def _end_of(files: RunFiles, run_id: int) -> tuple[str, dict[str, Any]]:
    """How a run ended: a sentence, and all its fields."""
    info: dict[str, Any] = json.loads(files.read(f"{run_id}/info.json"))
    took = ""
    try:
        took = f" after {_moment(info['ended']) - _moment(info['started'])}"
    except ValueError:
        pass  # times are missing, or of a form nobody has seen yet
    return printable(f"run {run_id} in {info['folder']}: {info['status_name']}{took}"), info


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _notify(text: str) -> None:
    """Show the text on the desktop, if there is one: the body of a notification is markup."""
    program = shutil.which("notify-send")
    if program is not None:
        try:
            subprocess.run(
                [program, "cloudsimfs", html.escape(text, quote=False)],
                timeout=NOTIFY_BOUND,
                capture_output=True,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            pass
