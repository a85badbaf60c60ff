"""Names that others choose: those of the control folders, and those that would control a terminal or forge a line."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from cloudsimfs.cli import runs
from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, cloudsimfs, wait_until

NAME = "a\n2026-01-01 00:00:00,000 ERROR forged: \x1b[2J\x9b2J\u202etxt.exe"
SHOWN = r"a\n2026-01-01 00:00:00,000 ERROR forged: \x1b[2J\x9b2J\u202etxt.exe"


def is_clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n")) and not any(
        line.startswith("2026-01-01") for line in text.split("\n")
    )


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_stored_names_do_not_hide_the_control_folders(box: Sandbox, mount: MountFactory, kind: str) -> None:
    inside = "/status" if kind == "folder" else ""
    box.populate({f".simulations{inside}": b"x", f".cloudsimfs{inside}": b"x", "f": b"f", "d/.simulations": b"x"})
    m = mount()
    with os.scandir(m.path) as found:
        assert sorted(each.name for each in found) == ["d", "f"]
    assert os.listdir(m.path / "d") == [".simulations"]
    assert (m.path / ".simulations/runs").read_text() == ""
    assert "service " in (m.path / ".cloudsimfs/status").read_text()
    assert m.umount().returncode == 0


@pytest.mark.parametrize("api", ["v1"])
def test_no_name_reaches_a_terminal_or_the_log_as_it_is(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=0.05)
    box.faults.add("upload-url", "status", status=500)
    (m.path / NAME).write_bytes(b"text")
    wait_until(lambda: NAME in m.status()["pending"][0]["path"] and m.status()["pending"][0]["error"], "a failure")
    pending = (m.path / ".cloudsimfs/pending").read_text()
    assert SHOWN in pending
    texts = [pending, (m.path / ".cloudsimfs/status").read_text(), cloudsimfs("status", m.path).stdout]
    texts.append(cloudsimfs("umount", m.path, "--no-wait").stderr)
    texts.append(cloudsimfs("recover", "--cache-dir", m.cache).stdout)
    for text in texts:
        assert SHOWN in text
    texts.append(m.log())
    assert SHOWN in texts[-1]
    for text in texts:
        assert is_clean(text), text


@pytest.mark.parametrize("api", ["v1"])
def test_json_keeps_names_and_shows_no_control_characters(m: Mounted, box: Sandbox) -> None:
    box.faults.add("upload-url", "status", status=500)
    (m.path / NAME).write_bytes(b"text")
    assert m.status()["pending"][0]["path"] == NAME
    assert is_clean((m.path / ".cloudsimfs/status.json").read_text())
    m.umount("--no-wait")


# -- logs and notifications ----------------------------------------------------------------------------------------

LOG = b"\x1b]0;title\x07one\r\n\ttwo \xff\n"


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "shown"), [(Terminal, b"\\x1b]0;title\\x07one\n\ttwo \\xff\n"), (io.TextIOWrapper, LOG)]
)
def test_a_log_is_byte_for_byte_only_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.TextIOWrapper], shown: bytes
) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", stream(out))
    assert runs._show(LOG) == len(LOG)
    assert out.getvalue() == shown


def test_notifications_have_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desktop = tmp_path / "notify-send"
    desktop.write_text('#!/bin/sh\necho "$2" >> "$0.told"\n')
    desktop.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    runs._notify("run 1 in <a href='x'>&: COMPLETED")
    assert (tmp_path / "notify-send.told").read_text() == "run 1 in &lt;a href='x'&gt;&amp;: COMPLETED\n"
