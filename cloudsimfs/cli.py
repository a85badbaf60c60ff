"""The commands. The only module that imports click; every failure is one line on stderr and a status of 1."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from cloudsimfs import __version__, config, datacache, mountpoint
from cloudsimfs.control import SIMULATIONS, STATE
from cloudsimfs.daemon import run_in_background, set_up_logging
from cloudsimfs.errors import CloudsimfsError, ConfigError, MountError
from cloudsimfs.journal import count_pending
from cloudsimfs.service.redact import redact

EXIT_TIMEOUT = 30.0  # seconds `umount` waits for the daemon to end after the unmount


class _Group(click.Group):
    """Turns this package's errors into click's: one line, exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CloudsimfsError as error:
            raise click.ClickException(redact(str(error))) from error


@click.group(cls=_Group, context_settings={"auto_envvar_prefix": "CLOUDSIMFS", "show_default": True})
@click.version_option(__version__, prog_name="cloudsimfs")
def main() -> None:
    """Mount a cloud simulation service as a drive, and drive its runs through files."""


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
        daemon = int(_status(directory)["pid"])
        if not no_wait:
            _drain(directory)  # if a file is open, unmounting says so, or was asked to be lazy
    except OSError as error:
        if error.errno not in mountpoint.DEAD:
            raise MountError(f"{directory}: {error.strerror}") from error
        lazy = True
    mountpoint.unmount(directory, lazy=lazy)
    if daemon is not None and not lazy:
        _wait_for_end(daemon)


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
def refresh(path: Path) -> None:
    """Have PATH, a folder or file in a mount, and all below it looked at anew."""
    top = _mount_of(path)
    (top / STATE / "refresh").write_text(str(path.absolute()))


@main.command()
@click.argument("path", type=click.Path(path_type=Path), default=".")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(path: Path, as_json: bool) -> None:
    """What waits for upload, how full the cache is, and how many API calls are left, of the mount PATH is in."""
    top = _mount_of(path) / STATE
    click.echo((top / ("status.json" if as_json else "status")).read_text(), nl=False)


@main.command()
@click.argument("path", type=click.Path(path_type=Path), default=".")
def flush(path: Path) -> None:
    """Wait until all that was written in the mount PATH is in is on the service."""
    top = _mount_of(path)
    if not _drain(top):
        raise MountError((top / SIMULATIONS / "error").read_text().strip())


def _mount_of(path: Path) -> Path:
    """The mount point above a path. Raises MountError."""
    for top in [path.absolute(), *path.absolute().parents]:
        if mountpoint.mount_type(top) == mountpoint.FS_TYPE:
            return top
    raise MountError(f"{path}: not inside a cloudsimfs mount")


def _status(directory: Path) -> dict[str, Any]:
    found = json.loads((directory / STATE / "status.json").read_text())
    assert isinstance(found, dict)
    return found


def _drain(directory: Path) -> bool:
    """Have everything uploaded, showing how far it is. Raises MountError with what remains.

    False if a file is still open for writing.
    """
    flush = directory / STATE / "flush"
    pending = _status(directory)["pending"]
    with click.progressbar(length=len(pending), label="uploading", hidden=not pending) as bar:
        while True:
            try:
                flush.write_text("1")
                bar.update(len(pending) - bar.pos)
                return True
            except TimeoutError:
                bar.update(max(0, len(pending) - len(_status(directory)["pending"]) - bar.pos))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                return False
    left = _status(directory)["pending"]
    reason = next((job["error"] for job in left if job["error"]), "unknown reason")
    raise MountError(
        f"{len(left)} operations are not on the service yet: {reason}. They are safe in "
        f"{_status(directory)['cache']['directory']}; --no-wait unmounts now, and the next mount goes on"
    )


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


@main.group()
def cache() -> None:
    """What is kept on disk of files that were read: by account, mounted or not."""


def _cache_options(command: Callable[..., None]) -> Callable[..., None]:
    url = click.option("--url", envvar="CLOUDSIMFS_URL", help="The service's address; default: all that are there.")
    place = click.option("--cache-dir", envvar="CLOUDSIMFS_CACHE_DIR", type=click.Path(path_type=Path))
    return url(place(command))


@cache.command()
@_cache_options
@click.option("--json", "as_json", is_flag=True, help="For programs; sizes in bytes.")
def show(url: str | None, cache_dir: Path | None, as_json: bool) -> None:
    """How much the cache holds, and where."""
    found = {str(directory): datacache.measure(directory) for directory in config.account_dirs(cache_dir, url)}
    if as_json:
        click.echo(json.dumps({place: {"bytes": used, "files": files} for place, (used, files) in found.items()}))
        return
    for place, (used, files) in found.items():
        click.echo(f"{place}: {used / 2**20:.1f} MiB in {files} files")


@cache.command()
@_cache_options
def clear(url: str | None, cache_dir: Path | None) -> None:
    """Remove what is cached and stored on the service; what waits for its upload stays. Not while it is mounted."""
    for directory in config.account_dirs(cache_dir, url):
        click.echo(f"{directory}: {datacache.clear(directory) / 2**20:.1f} MiB freed")


@main.command()
@click.option("--host", default="127.0.0.1")
@click.option("--port", default=8765)
@click.option("--key-file", type=click.Path(path_type=Path), help="Write the API key into this file.")
@click.option("--calls-per-hour", default=500, help="The account's limit; 0 for none.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where files live; default: gone at the end.")
def sandbox(host: str, port: int, key_file: Path | None, calls_per_hour: int, data_dir: Path | None) -> None:
    """Run the embedded service in the foreground: API v1 and v2, and runs that really compute."""
    try:
        from cloudsimfs.sandbox import Sandbox, Settings, serve_forever
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing; install it: pip install 'cloudsimfs[sandbox]'") from error

    def announce(box: Sandbox) -> None:
        if key_file is not None:
            key_file.unlink(missing_ok=True)
            with open(os.open(key_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                file.write(box.key + "\n")
        click.echo(f"the sandbox listens at {box.url}" + (f", key in {key_file}" if key_file else ""))

    serve_forever(
        host=host,
        port=port,
        data_dir=data_dir,
        key=None,
        settings=Settings(hourly_limit=calls_per_hour),
        announce=announce,
    )
