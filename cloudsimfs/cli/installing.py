"""`install-service`: a profile as a user service of systemd, or the helpers that mount(8) and umount(8) call."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import click

from cloudsimfs import config
from cloudsimfs.cli.group import main
from cloudsimfs.cli.options import profile_names
from cloudsimfs.config import profiles
from cloudsimfs.config.settings import xdg_directory
from cloudsimfs.errors import ConfigError, MountError
from cloudsimfs.host import mountpoint

TEMPLATE = "cloudsimfs@.service"
SBIN = Path("/sbin")
HELPERS = ("mount.fuse.cloudsimfs", "umount.fuse.cloudsimfs")

EPILOG = """\
\b
Examples:
  cloudsimfs install-service work            mounted now, and whenever you are logged in
  cloudsimfs install-service --remove work   stopped (what is pending is uploaded first), disabled, removed
  sudo "$(command -v cloudsimfs)" install-service --system
  sudo "$(command -v cloudsimfs)" install-service --system --remove

It may be run again at any time. To have the mount before you log in: loginctl enable-linger
"""


@main.command("install-service", epilog=EPILOG)
@click.argument("profile", required=False, shell_complete=profile_names)
@click.option(
    "--system", is_flag=True, help="Make the type fuse.cloudsimfs known to mount(8) and /etc/fstab (root only)."
)
@click.option("--remove", is_flag=True, help="Remove what this command installed.")
def install_service(profile: str | None, system: bool, remove: bool) -> None:
    """Mount PROFILE whenever you are logged in, as the systemd user service cloudsimfs@PROFILE."""
    if (profile is None) != system:
        raise click.UsageError("--system is for all profiles: name none" if profile else "name the profile")
    if system:
        _system(remove=remove)
    elif remove:
        _remove(profiles.check_name(str(profile)))
    else:
        _install(str(profile))


def _install(profile: str) -> None:
    place = _place(profile)
    unit = f"cloudsimfs@{profile}.service"
    _check_systemctl()
    kind = mountpoint.mount_type(place)
    if kind is None:
        place.mkdir(parents=True, exist_ok=True)
    elif kind == mountpoint.FS_TYPE and mountpoint.state(place) == "ok" and not _is_running(unit):
        raise MountError(f"{place}: mounted, and not by the service; do: cloudsimfs umount {place}")
    _units().mkdir(parents=True, exist_ok=True)
    (_units() / TEMPLATE).write_text(_template(_program().parent))
    _systemctl("daemon-reload")
    _systemctl("enable", unit)
    try:
        _systemctl("restart", unit)
    except MountError as error:
        raise MountError(f"{error}; see: systemctl --user status {unit}") from None
    _say(f"{profile} is mounted on {place}, now and whenever you log in (before that: loginctl enable-linger)")


def _remove(profile: str) -> None:
    unit = f"cloudsimfs@{profile}.service"
    _check_systemctl()
    if _is_running(unit) or unit in _enabled():
        _systemctl("disable", "--now", unit)
        _say(f"{unit} is stopped and disabled")
    else:
        config.resolve({}, profile)  # says so if the name is mistyped
        _say(f"{unit} is not installed")
    template = _units() / TEMPLATE
    if template.exists() and not _enabled() and not _is_running("cloudsimfs@*.service"):
        template.unlink()
        _systemctl("daemon-reload")
        _say(f"{template} is removed: no other profile has a service")


def _place(profile: str) -> Path:
    """The mount point that the profile names: a service has no other way to know one. Raises ConfigError."""
    setting = config.resolve({}, profile).values["mountpoint"]
    if not setting.of_profile:
        raise ConfigError(
            f'profile {profile}: it names no mount point; put mountpoint = "~/cloud" below [profiles.{profile}] in '
            f"{profiles.config_file()}"
        )
    return Path(setting.value).absolute()


# -- systemd ---------------------------------------------------------------------------------------------------


def _template(programs: Path) -> str:
    """The unit file, with a PATH on which our program comes before others of its name."""
    text = (Path(__file__).parents[1] / TEMPLATE).read_text()
    first = re.sub(r'(["\\])', r"\\\1", str(programs)).replace("%", "%%")  # systemd.exec(5): Environment=
    return re.sub(
        r"^Environment=PATH=(.*)$", lambda found: f'Environment="PATH={first}:{found[1]}"', text, flags=re.M
    )


def _units() -> Path:
    return xdg_directory("XDG_CONFIG_HOME", "~/.config").parent / "systemd/user"


def _enabled() -> set[str]:
    """The services of all profiles that are started at login."""
    return {link.name for link in _units().glob("*.wants/cloudsimfs@?*.service")}


def _is_running(pattern: str) -> bool:
    states = "--state=active,reloading,activating,deactivating"
    return bool(_systemctl("list-units", "--plain", "--no-legend", states, pattern).strip())


def _check_systemctl() -> None:
    if shutil.which("systemctl") is None:
        raise MountError(
            "systemctl is missing, this machine does not run systemd; a line of /etc/fstab mounts, too: "
            "see cloudsimfs install-service --system"
        )


def _systemctl(*words: str) -> str:
    """Run `systemctl --user`. Returns its output; raises MountError with its reason."""
    done = subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or f"status {done.returncode}").splitlines()[0].rstrip(".")
        if "connect to bus" in reason:
            raise MountError(f"your systemd does not answer ({reason}); log in as yourself, not through su or sudo")
        raise MountError(f"systemctl --user {' '.join(words)}: {reason}")
    return done.stdout


# -- mount(8) --------------------------------------------------------------------------------------------------


def _system(*, remove: bool) -> None:
    program = _program()
    if os.geteuid() != 0:
        words = "--system --remove" if remove else "--system"
        raise MountError(
            f"only root may write to {SBIN}; do: sudo {shlex.quote(str(program))} install-service {words}"
        )
    for name in HELPERS:
        helper, link = program.parent / name, SBIN / name
        if not remove and not os.access(helper, os.X_OK):
            raise MountError(f"{helper}: not there; install the package anew")
        link.unlink(missing_ok=True)
        if not remove:
            link.symlink_to(helper)
    if remove:
        _say("removed")
    else:
        _say(
            "done. Try: mount -t fuse.cloudsimfs PROFILE-OR-URL DIRECTORY; a line of /etc/fstab:\n"
            "work /home/me/cloud fuse.cloudsimfs user,noauto,_netdev 0 0"
        )


def _program() -> Path:
    """Where this program is installed, beside its helpers. A link to it elsewhere on the PATH is followed."""
    called = shutil.which(sys.argv[0])
    if called is None or Path(called).name != "cloudsimfs":  # python -m cloudsimfs
        called = f"{sysconfig.get_path('scripts')}/cloudsimfs"
    if not os.access(called, os.X_OK):
        raise MountError(f"{called}: not there; install the package anew")
    return Path(called).resolve()


def _say(text: str) -> None:
    click.echo(text, err=True)
