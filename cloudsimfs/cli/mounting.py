"""`mount` and `umount`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from cloudsimfs import config
from cloudsimfs.cli.adopting import note_other_keys
from cloudsimfs.cli.checks import check_mounting
from cloudsimfs.cli.drain import Offline, drain, left_behind
from cloudsimfs.cli.group import main
from cloudsimfs.cli.mounts import check_owner, dead_mounts, mount_at_hand, read_status
from cloudsimfs.cli.options import options, settings_of
from cloudsimfs.config import mountoptions
from cloudsimfs.config.settings import DIRECT, split_options
from cloudsimfs.errors import ConfigError, MountError
from cloudsimfs.host import mountpoint
from cloudsimfs.host.daemon import notify_systemd, run_in_background
from cloudsimfs.host.logs import set_up_logging
from cloudsimfs.host.users import become
from cloudsimfs.text import printable
from cloudsimfs.vfs import accountdir

NO_WAIT = "--no-wait unmounts now, and the next mount continues"
EXIT_TIMEOUT = 30.0  # seconds `umount` waits for the daemon to end after the unmount


MOUNT_EPILOG = """\
\b
Examples:
  cloudsimfs mount ~/cloud
  cloudsimfs mount ~/cloud --profile work --read-only
  cloudsimfs mount ~/cloud --url https://service.example --key-file license.json
  cloudsimfs mount ~/cloud -o ro,noexec,ttl=300
  mount -t fuse.cloudsimfs work ~/cloud                  where cloudsimfs install-service --system was run

Returns with status 0 when the drive is there; else with 1 and the reason on stderr, or with 2 for a wrong setting.
On SIGUSR1 the daemon writes its state into its log.
"""


@main.command(epilog=MOUNT_EPILOG)
@click.argument("directory", metavar="[MOUNTPOINT]", required=False, type=click.Path(path_type=Path))
@options(*DIRECT)
@click.option("-o", "words", multiple=True, metavar="OPTION,...", help="Mount options, and all of these, by name.")
@click.option("--foreground", "-f", is_flag=True, help="Stay in the foreground; log to stderr.")
def mount(directory: Path | None, words: tuple[str, ...], foreground: bool, **given: Any) -> None:
    """Mount the storage on MOUNTPOINT, or on the profile's, and return when it is ready."""
    run_mount(directory, words, foreground, given)


def run_mount(directory: Path | None, words: tuple[str, ...], foreground: bool, given: dict[str, Any]) -> None:
    settings, mount_options = _chosen(given, words)
    directory = place_of(directory, settings)
    chosen = config.mount_config(settings, mount_options)
    note_other_keys(chosen.cache_dir)
    mountpoint.check(directory)
    check_mounting(directory, settings)
    with accountdir.provisional(chosen.cache_dir, log_file=None if settings["log-file"] else chosen.log_file):
        _serve(chosen, directory, settings, foreground=foreground)


def _serve(chosen: config.Config, directory: Path, settings: config.Settings, *, foreground: bool) -> None:
    try:
        from cloudsimfs.mount import Mount  # loads libfuse: not for the other commands
    except (OSError, AttributeError) as error:  # what the binding raises if there is none, or too old a one
        raise MountError(f"libfuse cannot be used ({error}); install it: apt install fuse3") from error

    def serve(ready: Callable[[str], None]) -> None:
        Mount(chosen, directory, ready=ready).serve()

    def say_ready(note: str) -> None:
        click.echo(f"mounted {chosen.url} on {directory}")  # the log has the note
        notify_systemd(f"READY=1\nSTATUS={note or f'{chosen.url} on {directory}'}")

    os.umask(0o077)  # what a mount keeps, and logs, is the user's alone
    if foreground:
        set_up_logging(settings["log-file"], chosen.log_level, chosen.log_format)
        serve(say_ready)
    else:
        assert chosen.log_file is not None
        note = run_in_background(
            serve, log_file=chosen.log_file, level=chosen.log_level, log_format=chosen.log_format
        )
        if note:
            click.echo(printable(f"note: {note}"), err=True)


def _chosen(given: dict[str, Any], words: tuple[str, ...]) -> tuple[config.Settings, tuple[str, ...]]:
    """The settings, and the options for the kernel. An option of ours takes precedence over the same one after -o."""
    own = mountoptions.parse(word for text in words for word in split_options(text))
    for name, value in own.settings.items():
        field = name.replace("-", "_")
        if given[field] is None:
            given[field] = value
    settings = settings_of(given)
    of_profile = mountoptions.parse(settings["options"] or ())
    for name, value in of_profile.settings.items():
        source = settings.values["options"].source
        raise ConfigError(f"{source}: options: write this as a setting of its own: {name} = {value}")
    return settings, (*of_profile.kernel, *own.kernel)


def place_of(directory: Path | None, settings: config.Settings) -> Path:
    """The mount point: the one given, else the profile's. Raises ConfigError."""
    place = directory or settings["mountpoint"]
    if place is None:
        raise ConfigError(f"no mount point: name it, or put mountpoint = ... into the profile {settings.profile}")
    return Path(place).absolute()


UMOUNT_EPILOG = """\
\b
Examples:
  cloudsimfs umount ~/cloud
  cloudsimfs umount ~/cloud --timeout 60                 what is not uploaded by then waits for the next mount
  ExecStop=cloudsimfs umount --profile %i --service --timeout 780

An offline mount uploads nothing: it is unmounted at once, and a note says what waits for the next online one.
"""


@main.command(epilog=UMOUNT_EPILOG)
@click.argument("directory", metavar="[MOUNTPOINT]", required=False, type=click.Path(path_type=Path))
@options()
@click.option(
    "--lazy", is_flag=True, help="Unmount even if files are in use; the mount serves them until they are closed."
)
@click.option("--no-wait", is_flag=True, help="Do not wait for uploads; they continue at the next mount.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait no longer for uploads, nor for one that fails; then unmount, and say what waits for the next mount.",
)
@click.option(
    "--service",
    is_flag=True,
    help="For ExecStop= of a unit: unmount only what its main process serves, or what a dead one left.",
)
def umount(
    directory: Path | None, lazy: bool, no_wait: bool, timeout: float | None, service: bool, **given: Any
) -> None:
    """Upload what is pending, then unmount MOUNTPOINT, or the profile's, or the only one there is."""
    directory = directory.absolute() if directory else _mounted_place(given)
    if service and not _is_units_own(directory):
        return
    user = mountpoint.owner(directory)
    if user is None:
        raise MountError(f"{directory}: no cloudsimfs is mounted there")
    if os.getuid() == 0 and user != 0:
        _become(directory, user)  # root asks nothing of what a user serves, and unmounts as that user would
    check_owner(directory, user)
    daemon = None
    note = ""
    try:
        state = read_status(directory)
        daemon = int(state["pid"])
        if not no_wait:
            note = _upload(directory, timeout)
        elif state["pending"]:
            note = left_behind(directory)
    except OSError as error:
        if error.errno not in mountpoint.DEAD:
            raise MountError(f"{directory}: {error.strerror}") from error
        lazy = True
    mountpoint.unmount(directory, lazy=lazy)
    if note:
        click.echo(printable(f"note: {note}"), err=True)
    if daemon is not None and not lazy:
        _wait_for_end(daemon)


def _become(directory: Path, user: int) -> None:
    try:
        become(user)
    except KeyError:
        raise MountError(
            f"{directory}: mounted by user {user}, who is gone; do: fusermount3 -u {directory}"
        ) from None


def _is_units_own(directory: Path) -> bool:
    """Whether the unit that systemd stops has to unmount what is there.

    systemd runs ExecStop= also when the main process has ended by itself, then without MAINPID: what is mounted there
    by now was mounted by hand.
    """
    if not mountpoint.is_ours(directory):
        return False
    try:
        return str(read_status(directory)["pid"]) == os.environ.get("MAINPID")
    except OSError as error:
        return error.errno in mountpoint.DEAD


def _upload(directory: Path, timeout: float | None) -> str:
    """Wait for the uploads. Returns what remains for the next mount; raises MountError if nothing should."""
    try:
        # if a file is open, unmounting says so, or was asked to be lazy
        drain(directory, NO_WAIT, timeout=math.inf if timeout is None else timeout)
    except MountError as error:
        if timeout is None and not isinstance(error, Offline):
            raise
        return left_behind(directory)
    return ""


def _mounted_place(given: dict[str, Any]) -> Path:
    any_will_do = not given["profile"]
    settings = settings_of(given)
    if settings["mountpoint"] is not None or not any_will_do:
        return place_of(None, settings)
    at_hand = mount_at_hand()
    if at_hand is not None:
        return at_hand
    dead = dead_mounts()
    if len(dead) > 1:
        raise MountError(f"several dead mounts ({', '.join(map(str, dead))}): name one")
    if not dead:
        raise MountError("no cloudsimfs is mounted")
    return dead[0]


def _wait_for_end(pid: int) -> None:
    """Wait until the daemon has closed its files, which the next mount needs: it does so after the unmount."""
    deadline = time.monotonic() + EXIT_TIMEOUT
    while time.monotonic() < deadline and not _has_ended(pid):
        time.sleep(0.02)


def _has_ended(pid: int) -> bool:
    """A container's init may never reap it, and it has its files until its last thread is gone (proc_pid_stat(5))."""
    try:
        state, *values = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return True
    return state in "ZX" and int(values[16]) <= 1
