"""A drive that the real systemd manages: what umount, stop, a refused key and a kill make of its unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from systemd_harness import home, programs, run, systemd

__all__ = ["home", "programs", "systemd"]  # fixtures

Managed = tuple[str, dict[str, str], Path]
"""What a script begins with, and what `run` wants with it."""

UNIT = """
    unit() { systemctl --user show -p "$1" --value cloudsimfs@work; }
    until_is() { until [ "$(unit "$1")" = "$2" ]; do sleep 0.1; done; }
    started() {
        cp drive/.cloudsimfs/status.json /dev/null
        echo "$(unit ActiveState) $(unit SubState)"
    }
    ended() {
        until [ "$(unit MainPID)" = 0 ]; do sleep 0.1; done
        until [ "$(unit SubState)" != stop ]; do sleep 0.1; done
        echo "$(unit ActiveState) $(unit SubState) $(unit Result)"
    }
    mounted() { grep -c " $PWD/drive " /proc/self/mounts || true; }
    mkdir -p .config/systemd/user/cloudsimfs@.service.d   # there is no journal: its lines go to a file
    printf '[Service]\\nRestartSec=100ms\\nStandardError=append:%%h/journal\\n' \\
        > .config/systemd/user/cloudsimfs@.service.d/test.conf
    "$ROOT/scripts/install-service" work
    started
"""


@pytest.fixture
def managed(home: dict[str, str], programs: Path, systemd: str) -> Managed:
    """The drive is mounted by its unit."""
    return systemd + UNIT, home, programs


def in_unit(managed: Managed, script: str) -> list[str]:
    """The lines that the script printed after the drive was there."""
    begin, home, programs = managed
    first, *lines = run(begin + script, home, programs).splitlines()
    assert first == "active running"
    return lines


def journal(managed: Managed) -> str:
    return (Path(managed[1]["HOME"]) / "journal").read_text()


def test_umount_lasts(box: Sandbox, managed: Managed) -> None:
    said = in_unit(
        managed,
        """
        echo one > drive/one
        cloudsimfs umount "$PWD/drive"
        ended
        mounted
        systemctl --user stop cloudsimfs@work && echo stopped
        systemctl --user start cloudsimfs@work
        cat drive/one
        fusermount3 -u drive                                # as a file manager does it
        ended
        """,
    )
    assert said == ["inactive dead success", "0", "stopped", "one", "inactive dead success"]
    assert box.files() == {"one": b"one\n"}


def test_a_stop_leaves_what_was_mounted_by_hand(box: Sandbox, managed: Managed) -> None:
    """Also in the moment between the end of the unit's own mount and the end of its ExecStop=."""
    said = in_unit(
        managed,
        """
        mv bin/cloudsimfs bin/cloudsimfs.real               # ExecStop= comes late
        printf '%s\\n' '#!/bin/sh' 'case "$*" in *--service*) until [ -e go ]; do sleep 0.1; done;; esac' \\
            'exec "${0%/*}/cloudsimfs.real" "$@"' > bin/cloudsimfs; chmod 755 bin/cloudsimfs
        cloudsimfs umount drive
        cloudsimfs.real mount drive --profile work >/dev/null
        touch go
        ended
        mounted
        systemctl --user stop cloudsimfs@work
        mounted
        cloudsimfs umount drive
        """,
    )
    assert said == ["inactive dead success", "1", "1"]


@pytest.mark.parametrize("trouble", ["key", "down"])
def test_a_stop_with_pending_uploads(box: Sandbox, managed: Managed, trouble: str) -> None:
    """What cannot be uploaded does not make the stop fail, and the journal says what waits."""
    if trouble == "key":
        box.faults.add("upload-url", "status", status=401, body='{"errors": ["Unauthorized."]}')
    else:
        box.faults.add("upload-url", "drop_reply")
    said = in_unit(
        managed,
        """
        echo one > drive/one
        systemctl --user stop cloudsimfs@work && echo stopped
        ended
        mounted
        """,
    )
    assert said == ["stopped", "inactive dead success", "0"]
    assert "note: 1 operation (0.0 MiB) waits in" in journal(managed)
    assert "for the next mount (/one)" in journal(managed)
    assert box.files() == {}


def test_a_kill_restarts_it(box: Sandbox, managed: Managed) -> None:
    said = in_unit(
        managed,
        """
        echo one > drive/one
        kill -9 "$(unit MainPID)"
        until_is NRestarts 1
        until_is SubState running
        cat drive/one
        systemctl --user stop cloudsimfs@work
        ended
        """,
    )
    assert said == ["one", "inactive dead success"]
    assert box.files() == {"one": b"one\n"}
