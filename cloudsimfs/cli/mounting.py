"""`mount` and `umount`."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path
from typing import Any

import click

from cloudsimfs import config, mountpoint
from cloudsimfs.cli.base import main
from cloudsimfs.cli.running import drain, read_status
from cloudsimfs.daemon import run_in_background, set_up_logging
from cloudsimfs.errors import ConfigError, MountError
from cloudsimfs.journal import count_pending

EXIT_TIMEOUT = 30.0  # seconds `umount` waits for the daemon to end after the unmount


@main.command(context_settings={"auto_envvar_prefix": "CLOUDSIMFS"})
@click.argument("directory", metavar="MOUNTPOINT", type=click.Path(path_type=Path))
@click.option("--url", envvar="CLOUDSIMFS_URL", required=True, help="The service's address.")
@click.option("--api", envvar="CLOUDSIMFS_API", type=click.Choice(["auto", "v1", "v2"]), default="auto")
@click.option(
    "--key-file",
    envvar="CLOUDSIMFS_KEY_FILE",
    type=click.Path(path_type=Path),
    help="The API key, or the service's license file.",
)
@click.option("--cache-dir", envvar="CLOUDSIMFS_CACHE_DIR", type=click.Path(path_type=Path))
@click.option("--cache-size", envvar="CLOUDSIMFS_CACHE_SIZE", default="20G", help="At most this on disk.")
@click.option(
    "--ttl",
    envvar="CLOUDSIMFS_TTL",
    type=click.FloatRange(min=0),
    default=config.TTL,
    help="Seconds a listing is believed.",
)
@click.option(
    "--run-ttl",
    envvar="CLOUDSIMFS_RUN_TTL",
    type=click.FloatRange(min=0),
    default=config.RUN_TTL,
    help="Seconds the list of runs is believed.",
)
@click.option(
    "--write-back",
    envvar="CLOUDSIMFS_WRITE_BACK",
    type=click.FloatRange(min=0),
    default=config.WRITE_BACK,
    help="Seconds from close to upload.",
)
@click.option(
    "--fsync",
    envvar="CLOUDSIMFS_FSYNC",
    type=click.Choice(["local", "remote"]),
    default="local",
    help="fsync(2) waits for this disk, or until the service has the file.",
)
@click.option(
    "--calls-per-hour",
    envvar="CLOUDSIMFS_CALLS_PER_HOUR",
    type=click.IntRange(min=1),
    help="Never more API calls than this.",
)
@click.option("--offline", envvar="CLOUDSIMFS_OFFLINE", is_flag=True, help="Make no call: what is known and cached.")
@click.option(
    "--key-in-query",
    envvar="CLOUDSIMFS_KEY_IN_QUERY",
    is_flag=True,
    help="v1: for proxies that drop the key's header.",
)
@click.option("--read-only", envvar="CLOUDSIMFS_READ_ONLY", is_flag=True)
@click.option("--allow-other", envvar="CLOUDSIMFS_ALLOW_OTHER", is_flag=True, help="Other users may use the mount.")
@click.option("--uid", envvar="CLOUDSIMFS_UID", type=int, help="Owner of the files; default: you.")
@click.option("--gid", envvar="CLOUDSIMFS_GID", type=int, help="Group of the files; default: yours.")
@click.option("--umask", envvar="CLOUDSIMFS_UMASK", default="022", help="Octal.")
@click.option("--log-file", envvar="CLOUDSIMFS_LOG_FILE", type=click.Path(path_type=Path))
@click.option(
    "--log-level",
    envvar="CLOUDSIMFS_LOG_LEVEL",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
    default="INFO",
)
@click.option("-o", "mount_options", multiple=True, help="Further mount options, comma separated.")
@click.option("--foreground", "-f", is_flag=True, help="Stay in the foreground; log to stderr.")
def mount(directory: Path, foreground: bool, **given: Any) -> None:
    """Mount the storage on MOUNTPOINT and return when it is ready."""
    settings = _settings(given)
    directory = directory.absolute()
    mountpoint.prepare(directory)
    try:
        from cloudsimfs.mount import Mount  # loads libfuse: not for the other commands
    except (OSError, AttributeError) as error:  # what the binding raises if there is none, or too old a one
        raise MountError(f"libfuse cannot be used ({error}); install it: apt install fuse3") from error

    def serve(ready: Any) -> None:
        Mount(settings, directory, ready=ready).serve()

    if foreground:
        set_up_logging(settings.log_file, settings.log_level)
        serve(lambda: click.echo(f"mounted {settings.url} on {directory}"))
    else:
        log_file = settings.log_file or settings.cache_dir / "mount.log"
        run_in_background(serve, log_file=log_file.absolute(), level=settings.log_level)


def _settings(given: dict[str, Any]) -> config.Config:
    if not re.fullmatch("[0-7]{1,4}", given["umask"]):
        raise ConfigError(f"--umask {given['umask']}: not an octal number such as 022")
    umask = int(given["umask"], 8) & 0o777
    options = tuple(part for text in given["mount_options"] for part in text.split(",") if part)
    url = given["url"].rstrip("/")
    logging.basicConfig(format="%(message)s")  # what is said before the mount's own log exists
    credentials = config.find_credentials(given["key_file"])
    cache_dir = config.account_dir(given["cache_dir"], url, credentials.key)
    for other in config.other_accounts(cache_dir):
        waiting = count_pending(other / "journal.db")
        if waiting:
            click.echo(
                f"note: {waiting} files written with another key wait in {other}; mount with it once", err=True
            )
    return config.Config(
        url=url,
        credentials=credentials,
        cache_dir=cache_dir,
        api=given["api"],
        cache_size=config.parse_size(given["cache_size"]),
        ttl=given["ttl"],
        run_ttl=given["run_ttl"],
        write_back=given["write_back"],
        fsync=given["fsync"],
        offline=given["offline"],
        key_in_query=given["key_in_query"],
        read_only=given["read_only"],
        allow_other=given["allow_other"],
        uid=os.getuid() if given["uid"] is None else given["uid"],
        gid=os.getgid() if given["gid"] is None else given["gid"],
        umask=umask,
        calls_per_hour=given["calls_per_hour"],
        log_file=given["log_file"],
        log_level=given["log_level"],
        mount_options=options,
    )


@main.command()
@click.argument("directory", metavar="MOUNTPOINT", type=click.Path(path_type=Path))
@click.option("--lazy", is_flag=True, help="Unmount even if files are in use; they go when they are closed.")
@click.option("--no-wait", is_flag=True, help="Do not wait for uploads; they go on at the next mount.")
def umount(directory: Path, lazy: bool, no_wait: bool) -> None:
    """Upload what is pending, then unmount MOUNTPOINT."""
    directory = directory.absolute()
    if mountpoint.mount_type(directory) != mountpoint.FS_TYPE:
        raise MountError(f"{directory}: no cloudsimfs is mounted there")
    daemon = None
    try:
        daemon = int(read_status(directory)["pid"])
        if not no_wait:
            drain(directory)  # if a file is open, unmounting says so, or was asked to be lazy
    except OSError as error:
        if error.errno not in mountpoint.DEAD:
            raise MountError(f"{directory}: {error.strerror}") from error
        lazy = True
    mountpoint.unmount(directory, lazy=lazy)
    if daemon is not None and not lazy:
        _wait_for_end(daemon)


def _wait_for_end(pid: int) -> None:
    """The daemon still closes its files after the unmount; the next mount needs them."""
    deadline = time.monotonic() + EXIT_TIMEOUT
    while time.monotonic() < deadline and not _has_ended(pid):
        time.sleep(0.02)


def _has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"  # a container's init may never reap it (proc_pid_stat(5))
