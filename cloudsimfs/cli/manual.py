"""The manual page cloudsimfs(1), made from the commands themselves. Run by scripts/manpage; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from cloudsimfs import __version__
from cloudsimfs.cli.group import EPILOG, main
from cloudsimfs.config.settings import SETTINGS

NAME = "Mount a cloud simulation service as a drive, and drive its runs through files."

FSTAB = """\
The type fuse.cloudsimfs takes a profile or an address as its source, and the settings above among its options. Lines
of /etc/fstab for a user's own mount, and for one that is made at boot on her behalf:

\b
  work  /home/me/cloud  fuse.cloudsimfs  user,noauto,_netdev                0 0
  work  /srv/cloud      fuse.cloudsimfs  setuid=me,allow_other,_netdev      0 0

A mount in a user's name needs a directory that she may write to (sudo chown me /srv/cloud), and for allow_other a
line user_allow_other in /etc/fuse.conf.

A file manager shows the mount under its directory's name; x-gvfs-name=NAME in the options gives it another.
With the helpers of cloudsimfs install-service --system, umount(8) uploads what is pending first.
"""

FILES = (
    ("~/.config/cloudsimfs/config.toml", "settings: those for all profiles on top, then [profiles.NAME] for each"),
    ("~/.config/cloudsimfs/NAME.key", "the API key of a profile, as `cloudsimfs login` keeps it"),
    (
        "~/.cache/cloudsimfs/",
        "contents of files, and what waits for upload: do not delete it while something is pending",
    ),
    ("~/.local/state/cloudsimfs/", "logs of the mounts"),
    ("MOUNTPOINT/.simulations/", "runs, as files; README there says how"),
    ("MOUNTPOINT/.cloudsimfs/", "the mount's own state, as files"),
)


def manual_page() -> str:
    """The page, in man(7)."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield '.\\" Made by scripts/manpage from the commands; do not edit.'
    yield f'.TH CLOUDSIMFS 1 "" "cloudsimfs {__version__}" "User Commands"'
    yield ".SH NAME"
    yield f"cloudsimfs \\- {_roff(NAME[0].lower() + NAME[1:].rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield ".B cloudsimfs"
    yield "\\fICOMMAND\\fR [\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]..."
    yield ".SH DESCRIPTION"
    yield _roff(NAME)
    yield from _text(EPILOG)
    yield ".SH COMMANDS"
    for path, command in _commands(main, "cloudsimfs"):
        yield from _command(path, command)
    yield ".SH SETTINGS"
    yield "As keys of config.toml, as CLOUDSIMFS_\\fINAME\\fR in the environment, and after \\fB\\-o\\fR:"
    for row in SETTINGS.values():
        yield ".TP"
        yield f"\\fB{_roff(row.name)}\\fR"
        yield _roff(f"{row.help} Default: {row.unset if row.default is None else row.default}.")
    yield ".SH MOUNT(8) AND FSTAB(5)"
    yield from _text(FSTAB)
    yield ".SH FILES"
    for name, what in FILES:
        yield from (".TP", f"\\fI{_roff(name)}\\fR", _roff(what))
    yield ".SH SEE ALSO"
    yield "fusermount3(1), mount(8), mount.fuse3(8), fstab(5)"


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that is not hidden, groups before what is in them."""
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _command(path: str, command: click.Command) -> Iterator[str]:
    arguments = [_argument(each) for each in command.params if isinstance(each, click.Argument)]
    yield f'.SS "{_roff(" ".join([path, *arguments]))}"'
    yield from _text(command.help or "")
    for each in command.params:
        if isinstance(each, click.Option) and not each.hidden:
            yield from (".TP", f"\\fB{_roff(_option(each))}\\fR", _roff(_help(each, command)) or "\\&")
    yield from _text(command.epilog or "")


# What follows is click's to say, too, but in other words in each of its versions.


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (_metavar(argument) if _has_choices(argument) else (argument.name or "").upper())
    more = " ..." if argument.nargs != 1 and "..." not in name else ""
    return (name if argument.required or name.startswith("[") else f"[{name}]") + more


def _option(option: click.Option) -> str:
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        names += " / " + ", ".join(option.secondary_opts)
    return names if option.is_flag or option.count else f"{names} {_metavar(option)}"


def _help(option: click.Option, command: click.Command) -> str:
    default = option.get_default(click.Context(command), call=False)
    shown = isinstance(default, (str, int, float)) and not isinstance(default, bool) and default != ""
    return " ".join([*([option.help] if option.help else []), *([f"[default: {default}]"] if shown else [])])


def _metavar(parameter: click.Parameter) -> str:
    if parameter.metavar:
        return parameter.metavar
    if isinstance(parameter.type, click.Choice):
        return "|".join(map(str, parameter.type.choices))
    return parameter.type.name.upper()


def _has_choices(parameter: click.Parameter) -> bool:
    return isinstance(parameter.type, click.Choice)


def _text(text: str) -> Iterator[str]:
    r"""Paragraphs of a help text; click's \b marks one that stays as it is."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = paragraph.splitlines()
        if lines[:1] == ["\b"]:
            yield from (".PP", ".nf", *(_roff(line) for line in lines[1:]), ".fi")
        elif lines:
            yield from (".PP", *(_roff(line.strip()) for line in lines))


def _roff(text: str) -> str:
    escaped = " ".join(text.split("\n")).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
