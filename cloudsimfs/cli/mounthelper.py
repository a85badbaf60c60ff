"""What mount(8) and umount(8) call for the type fuse.cloudsimfs: /sbin/{mount,umount}.fuse.cloudsimfs.

    mount.fuse.cloudsimfs SOURCE DIRECTORY [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
    umount.fuse.cloudsimfs DIRECTORY [-flnrv] [-N NAMESPACE] [-t TYPE]

SOURCE is a profile or a URL. It stays visible as the mount's source, by which `mount -a` knows that it is there.
With `setuid=USER`, as mount.fuse3(8) has it, a mount made by root at boot is that user's: profile, key and cache.
"""

from __future__ import annotations

import getopt
import os
import pwd
import sys

import click

from cloudsimfs.cli.group import WRONG_USE, main
from cloudsimfs.config import mountoptions
from cloudsimfs.config.settings import split_options
from cloudsimfs.host.users import become


def mount() -> None:
    """The entry point `mount.fuse.cloudsimfs`."""
    options, places = _parsed("sfnvrwo:t:N:", 2, "SOURCE DIRECTORY [-o OPTIONS]")
    words = [word for name, text in options if name == "-o" for word in split_options(text)]
    words += ["ro"] if ("-r", "") in options else []
    if ("-f", "") in options:
        return  # `mount -f`: everything but the mount
    for word in words:
        if word.startswith(mountoptions.SETUID):
            _become(word.removeprefix(mountoptions.SETUID))
    main(["mount", places[1], "-o", mountoptions.with_source(places[0], words)], prog_name="cloudsimfs")


def umount() -> None:
    """The entry point `umount.fuse.cloudsimfs`: uploads what is pending first, as every unmount should."""
    options, places = _parsed("flnrvt:N:", 1, "DIRECTORY [-fl]")
    flags_given = {name for name, _ in options}
    flags = [*(["--lazy"] if "-l" in flags_given else []), *(["--no-wait"] if "-f" in flags_given else [])]
    main(["umount", places[0], *flags], prog_name="cloudsimfs")


def _parsed(known: str, count: int, usage: str) -> tuple[list[tuple[str, str]], list[str]]:
    try:
        options, places = getopt.gnu_getopt(sys.argv[1:], known)
        if len(places) == count:
            return options, places
        reason = f"{count} arguments are needed"
    except getopt.GetoptError as error:
        reason = error.msg
    program = os.path.basename(sys.argv[0])
    click.echo(f"{program}: {reason}: {program} {usage}", err=True)
    sys.exit(WRONG_USE)


def _become(name: str) -> None:
    """Go on as that user, for good."""
    try:
        become(pwd.getpwnam(name).pw_uid)
    except (KeyError, PermissionError) as error:
        reason = "no such user" if isinstance(error, KeyError) else "only root may do this"
        click.echo(f"-o {mountoptions.SETUID}{name}: {reason}", err=True)
        sys.exit(WRONG_USE)
