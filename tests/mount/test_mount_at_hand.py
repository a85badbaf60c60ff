"""Commands that are not told which mount: the one they are run in, else the only one there is."""

from __future__ import annotations

import pytest

from harness import MountFactory
from systemd_harness import command

pytestmark = pytest.mark.parametrize("api", ["v1"])


def test_the_only_mount_is_taken(mount: MountFactory) -> None:
    m = mount(write_back=3600)
    (m.path / "f").write_bytes(b"bytes")
    assert "1 operation" in command("status", among=[m]).stdout
    assert command("flush", among=[m]).returncode == 0
    assert m.box.files() == {"f": b"bytes"}
    assert command("recover", "--json", among=[m]).stdout.strip() == "[]"
    assert command("runs", among=[m]).stdout.startswith("ID")


def test_of_several_one_has_to_be_named_or_worked_in(mount: MountFactory) -> None:
    mounts = [mount(), mount()]
    for words in (["status"], ["flush"], ["recover"], ["runs"], ["umount"]):
        refused = command(*words, among=mounts)
        assert refused.returncode == 1, words
        assert "several mounts" in refused.stderr
        assert all(str(m.path) in refused.stderr for m in mounts)
    assert command("status", among=mounts, cwd=mounts[1].path).returncode == 0
    assert command("status", mounts[0].path, among=mounts).returncode == 0
    assert all(m.is_mounted() for m in mounts)


def test_none_at_all_is_said(mount: MountFactory) -> None:
    assert mount is not None  # its log is checked at the end
    for words in (["status"], ["flush"]):
        refused = command(*words, among=[])
        assert refused.returncode == 1
        assert "no cloudsimfs is mounted" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
