"""`doctor`: finds what is wrong, and says how to fix it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from cloudsimfs import config
from cloudsimfs.cli import checks
from cloudsimfs.cli.checks import Finding
from cloudsimfs.cli.group import FAILED, main
from cloudsimfs.cli.options import options, settings_of
from cloudsimfs.config.settings import ACCOUNT
from cloudsimfs.errors import MountError
from cloudsimfs.text import printable

EPILOG = """\
\b
Examples:
  cloudsimfs doctor
  cloudsimfs doctor --offline       no API call
  cloudsimfs doctor --fix           also unmounts dead mounts

Exit status: 0 if nothing keeps you from working (there may be warnings), else 1.
"""

_COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}


@main.command(epilog=EPILOG)
@options(*ACCOUNT, "allow-other", "offline")
@click.option("--fix", is_flag=True, help="Unmount dead mounts without asking.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(fix: bool, as_json: bool, **given: Any) -> None:
    """Check this machine, its mounts and the account. Makes at most 2 API calls, none with --offline."""
    settings = settings_of(given)
    findings = []
    for finding in _findings(settings):
        finding = _repaired(finding, fix=fix, ask=not as_json)
        findings.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        click.echo(json.dumps([_plain(finding) for finding in findings]))
    if any(finding.level == "failure" for finding in findings):
        sys.exit(FAILED)


def _findings(settings: config.Settings) -> Iterator[Finding]:
    yield checks.check_libfuse()
    yield checks.check_device()
    yield checks.check_fusermount()
    yield checks.check_fuse_conf(settings)
    yield from checks.check_mounts()
    yield checks.check_updatedb()
    yield checks.check_disk(settings)
    yield checks.check_pending(settings)
    yield from checks.check_journals(settings)
    yield from checks.check_listings(settings)
    yield checks.check_environment()
    account = checks.check_account(settings)
    yield account
    if account.level == "ok" and not settings["offline"]:
        with config.account(settings).connect() as client:
            yield from checks.check_service(client, settings)


def _repaired(finding: Finding, *, fix: bool, ask: bool) -> Finding:
    """The finding, or what it is after its repair."""
    if finding.repair is None:
        return finding
    if not fix:
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if not (ask and terminal and click.confirm(f"{finding.text}. Unmount it?", default=True)):
            return finding
    try:
        finding.repair()
    except MountError as error:
        return Finding(finding.what, "failure", str(error), finding.remedy)
    return Finding(finding.what, "ok", f"{finding.text}: unmounted")


def _show(finding: Finding) -> None:
    mark = click.style(f"{finding.level:8}", fg=_COLOURS[finding.level])
    text = f"{finding.what}: {finding.text}{f'; do: {finding.remedy}' if finding.remedy else ''}"
    click.echo(f"{mark} {printable(text)}")


def _plain(finding: Finding) -> dict[str, str]:
    return {"what": finding.what, "level": finding.level, "text": finding.text, "remedy": finding.remedy}
