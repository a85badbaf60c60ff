"""Checks of a machine, its mounts and an account. Each yields a finding with the exact remedy.

Each check looks at one thing and changes nothing. Only `check_service` makes calls, two at most.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cloudsimfs import config
from cloudsimfs.config import keys, profiles
from cloudsimfs.config.settings import SETTINGS, near
from cloudsimfs.datacache.directory import is_mounted
from cloudsimfs.errors import CloudsimfsError, ConfigError, KeyRefused, MountError
from cloudsimfs.host import mountpoint
from cloudsimfs.journal.fitting import set_aside
from cloudsimfs.journal.readonly import count_pending, read_misfit
from cloudsimfs.listings.store import read_learnt
from cloudsimfs.service import Client, Entry
from cloudsimfs.text import GIB, agree, count, gib
from cloudsimfs.vfs.drafts import find_drafts

Level = Literal["ok", "warning", "failure"]

KEPT_DAYS = 60  # the service deletes a file this long after it was created (docs/service.md, "Limits")
WARN_DAYS = 7
SKEW = 60.0  # seconds the clock may be wrong without harm
LOW_DISK = GIB  # bytes
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What was checked, its state, and what to do about it. `repair` does that, where it is safe."""

    what: str
    level: Level
    text: str
    remedy: str = ""
    repair: Callable[[], None] | None = None


# -- the machine -----------------------------------------------------------------------------------------------


def check_libfuse() -> Finding:
    try:
        from cloudsimfs.fuse import binding  # loads libfuse
    except (OSError, AttributeError, ImportError) as error:
        return Finding("libfuse", "failure", f"cannot be used: {error}", "sudo apt install fuse3 libfuse3-3")
    major, minor = binding.library_version()
    text = f"{major}.{minor}, through {binding.binding_name()}"
    if major < 3:
        return Finding("libfuse", "warning", f"{text}: slow, and less exact", "sudo apt install fuse3 libfuse3-3")
    return Finding("libfuse", "ok", text)


def check_device(device: str = "/dev/fuse") -> Finding:
    if not os.path.exists(device):
        remedy = "sudo modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN"
        return Finding(device, "failure", "is missing, nothing can be mounted", remedy)
    if not os.access(device, os.R_OK | os.W_OK):
        text = f"{_user()} may not open it, nothing can be mounted"
        return Finding(device, "failure", text, f"sudo chmod 0666 {device}")
    if os.geteuid() == 0 and os.stat(device).st_mode & 0o066 == 0:
        text = "there, and you may use it; other users may not"
        return Finding(device, "ok", text, f"sudo chmod 0666 {device}")
    return Finding(device, "ok", "there, and you may use it")


def check_fusermount() -> Finding:
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if program is None:
        return Finding("fusermount3", "failure", "is missing", "sudo apt install fuse3")
    if os.geteuid() != 0 and not os.stat(program).st_mode & 0o4000:
        return Finding("fusermount3", "failure", f"{program} is not setuid root", f"sudo chmod u+s {program}")
    return Finding("fusermount3", "ok", program)


def check_fuse_conf(settings: config.Settings, file: Path | None = None) -> Finding:
    if file is None:  # a fusermount3 that was built by hand has its own
        by_hand = (shutil.which("fusermount3") or "").startswith("/usr/local/")
        file = Path("/usr/local/etc/fuse.conf" if by_hand else "/etc/fuse.conf")
    try:
        allowed = re.search(r"^[ \t]*user_allow_other[ \t]*$", file.read_text(), re.MULTILINE) is not None
    except OSError:
        allowed = False
    if not settings["allow-other"]:
        return Finding("fuse.conf", "ok", f"allow-other is off; {'allowed' if allowed else 'not allowed'} by {file}")
    if allowed or os.geteuid() == 0:
        return Finding("fuse.conf", "ok", "allow-other is allowed")
    remedy = f"echo user_allow_other | sudo tee -a {file}"
    return Finding("fuse.conf", "failure", f"allow-other is set, {file} does not allow it", remedy)


def check_mountpoint(place: Path) -> Finding:
    """What fusermount3 asks of a directory before it mounts there for a user (its check_perm())."""
    user = _user()
    if os.geteuid() == 0:
        return Finding(str(place), "ok", "root may mount everywhere")
    try:
        status = os.stat(place)
    except OSError as error:
        if error.errno not in mountpoint.DEAD:
            raise
        return Finding(str(place), "ok", f"{user} has mounted there before")
    if not os.access(place, os.W_OK):
        text = f"{user} may not write to it, and a user mounts only where that is allowed"
        return Finding(str(place), "failure", text, f"sudo chown {user} {shlex.quote(str(place))}")
    if status.st_mode & stat.S_ISVTX and status.st_uid != os.geteuid():
        text = f"it is sticky, as /tmp is, and not {user}'s"
        return Finding(str(place), "failure", text, f"mkdir {shlex.quote(f'{place}/cloud')}, and mount there")
    return Finding(str(place), "ok", f"{user} may mount there")


def check_mounting(place: Path, settings: config.Settings) -> None:
    """Raises MountError with everything that keeps the user from mounting there, and each remedy, at once."""
    findings = (check_device(), check_fuse_conf(settings), check_mountpoint(place))
    wrong = [
        f"{finding.what}: {finding.text}; do: {finding.remedy}" for finding in findings if finding.level == "failure"
    ]
    if wrong:
        raise MountError(". ".join(wrong))


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def check_updatedb(file: Path = Path("/etc/updatedb.conf")) -> Finding:
    try:
        pruned = re.search(r'^[ \t]*PRUNEFS[ \t]*=[ \t]*"?([^"\n]*)', file.read_text(), re.MULTILINE)
    except OSError:
        return Finding("updatedb", "ok", "not installed: nothing scans the mount at night")
    if pruned is not None and mountpoint.FS_TYPE in pruned[1].split():
        return Finding("updatedb", "ok", "skips the mount")
    remedy = f"""sudo sed -i 's/^\\s*PRUNEFS\\s*=\\s*"/&{mountpoint.FS_TYPE} /' {file}"""
    if pruned is None:
        remedy = f"""echo 'PRUNEFS="{mountpoint.FS_TYPE}"' | sudo tee -a {file}"""
    return Finding("updatedb", "warning", "scans the mount at night, which costs API calls", remedy)


def check_environment() -> Finding:
    known = {row.variable for row in SETTINGS.values()} | {keys.VARIABLE, config.PROFILE_VARIABLE}
    unknown = sorted(name for name in os.environ if name.startswith("CLOUDSIMFS_") and name not in known)
    if not unknown:
        return Finding("environment", "ok", "has no unknown CLOUDSIMFS_ variable")
    text = ", ".join(f"{name} is no setting{near(name, known)}" for name in unknown)
    return Finding("environment", "warning", text, f"unset {' '.join(unknown)}")


# -- what is mounted, and kept ---------------------------------------------------------------------------------


def check_mounts() -> Iterator[Finding]:
    places = mountpoint.our_mounts()
    if not places:
        yield Finding("mounts", "ok", "nothing of yours is mounted")
    for place in places:
        state = mountpoint.state(place)
        if state == "ok":
            yield Finding("mounts", "ok", f"{place} answers")
            continue
        text = f"{place}: {'its daemon died' if state == 'dead' else 'it does not answer'}"
        remedy = f"fusermount3 -uz {place}, then mount again: nothing that was closed is lost"
        repair = _unmounting(place) if state == "dead" else None
        yield Finding("mounts", "failure", text, remedy, repair)


def _unmounting(place: Path) -> Callable[[], None]:
    return lambda: mountpoint.unmount(place, lazy=True)


def check_disk(settings: config.Settings) -> Finding:
    place = config.cache_base(settings["cache-dir"])
    there = next(each for each in (place, *place.parents) if each.exists())
    if not os.access(there, os.W_OK):
        return Finding("disk", "failure", f"{there}: you may not write there", "give --cache-dir DIR")
    free = shutil.disk_usage(there).free
    text = f"{gib(free)} free for {place}"
    if free < LOW_DISK:
        remedy = f"cloudsimfs cache clear{profiles.option(settings.profile)}, or --cache-dir"
        return Finding("disk", "warning", f"{text}: writing will soon fail", remedy)
    return Finding("disk", "ok", text)


def check_pending(settings: config.Settings) -> Finding:
    places = config.account_dirs(settings["cache-dir"], None)
    waiting = {place: files for place in places if (files := count_pending(place / "journal.db"))}
    if not waiting:
        return Finding("pending", "ok", "everything written is on the service")
    left = {place: files for place, files in waiting.items() if not is_mounted(place)}
    if left:
        text = ", ".join(f"{count(files, 'file')} in {place}" for place, files in left.items())
        remedy = "mount that account; do not delete them"
        return Finding("pending", "warning", f"not on the service yet: {text}", remedy)
    text = ", ".join(f"{count(files, 'file')} in {place}, which is mounted," for place, files in waiting.items())
    are = agree(sum(waiting.values()), "is", "are")
    return Finding("pending", "ok", f"{text} {are} to be uploaded; `cloudsimfs status` shows the progress")


def check_journals(settings: config.Settings) -> Iterator[Finding]:
    """The journals that were lost or set aside, and the files that only `recover` knows since."""
    for place in config.account_dirs(settings["cache-dir"], None):
        asides = set_aside(place)
        try:
            reason = "" if is_mounted(place) else read_misfit(place)
            found = [draft for draft in find_drafts(place) if draft.found]
        except MountError as error:
            yield Finding("journal", "failure", str(error), "do as it says; nothing was changed")
            continue
        lost = [f"the journal of {place} does not fit its files ({reason})"] if reason else []
        lost += [f"{aside} did not fit its files" for aside in asides]
        if found:
            lost.append(f"{count(len(found), 'file')} in {place} {agree(len(found), 'has', 'have')} no record")
        if lost:
            remedy = "cloudsimfs recover, which lists the files that were not stored"
            if asides and not (found or reason):
                remedy = f"rm {' '.join(shlex.quote(str(aside)) + '*' for aside in asides)}"
            yield Finding("journal", "warning", "; ".join(lost), remedy)


def check_listings(settings: config.Settings) -> Iterator[Finding]:
    """What mounts have learnt of an account's listings (v2)."""
    for place in config.account_dirs(settings["cache-dir"], None):
        learnt = read_learnt(place / "listings.db")
        if not learnt.page_size:
            continue
        lag = {
            True: "they lag: looking for news costs a call more, which deletes the service's cache",
            False: "they do not lag: looking for news costs no call to delete the service's cache",
            None: "not known yet whether they lag: looking for news costs a call more, in case",
        }[learnt.lags]
        yield Finding("listings", "ok", f"{place}: a page holds {learnt.page_size} entries or more; {lag}")


# -- the account -----------------------------------------------------------------------------------------------


def check_account(settings: config.Settings) -> Finding:
    try:
        owner = config.account(settings)
    except ConfigError as error:
        return Finding("account", "failure", str(error), _login(settings))
    return Finding("account", "ok", f"{owner.url}, key from {owner.key_source}")


def _login(settings: config.Settings) -> str:
    return f"cloudsimfs login{profiles.option(settings.profile)}"


def check_service(
    client: Client, settings: config.Settings, *, now: Callable[[], float] = time.time
) -> Iterator[Finding]:
    """Ask the service for its version and all entries: this proves the address, the key and the clock, too."""
    try:
        version = client.api_version
        entries = client.list_all()
    except KeyRefused as error:
        yield Finding("service", "failure", f"it does not accept the key: {error}", _login(settings))
        return
    except CloudsimfsError as error:
        yield Finding("service", "failure", str(error), "check --url and the network; is a proxy needed?")
        return
    calls = client.budget.snapshot().calls
    yield Finding("service", "ok", f"answers, API {version}; asking took {count(calls, 'call')}")
    yield _clock(client.clock_skew)
    yield _budget(client)
    yield _old_files([entry for entry in entries if not entry.is_dir], now())


def _clock(skew: float | None) -> Finding:
    if skew is None:
        return Finding("clock", "ok", "the service does not tell its time")
    if abs(skew) <= SKEW:
        return Finding("clock", "ok", "agrees with the service's")
    text = f"{abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'} the service's: links expire, times look wrong"
    return Finding("clock", "warning", text, "sudo timedatectl set-ntp true")


def _budget(client: Client) -> Finding:
    state = client.budget.snapshot()
    if state.remaining is None:
        return Finding("budget", "ok", "no limit is known")
    text = f"{state.used} of {state.limit} calls used this hour"
    if state.remaining > 0:
        return Finding("budget", "ok", text)
    at = time.strftime("%H:%M", time.localtime(state.resets_at))
    return Finding("budget", "warning", f"{text}: uploads wait", f"wait until {at}, or see what else uses the key")


def _old_files(files: list[Entry], now: float) -> Finding:
    """Warn of files that the service will delete within a week."""
    limit = now - (KEPT_DAYS - WARN_DAYS) * DAY
    old = sorted((file.mtime_ns / 1e9, file.path) for file in files if file.mtime_ns and file.mtime_ns / 1e9 < limit)
    if not old:
        text = f"the service will delete none of {len(files)} within {WARN_DAYS} days"
        return Finding("old files", "ok", text)
    stored, path = old[0]
    when = time.strftime("%Y-%m-%d", time.localtime(stored + KEPT_DAYS * DAY))
    text = f"{len(old)} will be deleted by the service within {WARN_DAYS} days; first, on {when}, /{path}"
    return Finding("old files", "warning", text, "copy them to this machine: cp -r, or rsync -a")
