"""Commands that are not told which mount: the one they are run in, else the only one there is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import Mounted, MountFactory, client_environment, patient

pytestmark = pytest.mark.parametrize("api", ["v1"])


def command(*arguments: str | Path, among: list[Mounted], cwd: Path | str = "/") -> subprocess.CompletedProcess[str]:
    """Run `cloudsimfs` where no other mounts are seen than those `among` which it is to choose."""
    if os.geteuid() != 0:
        pytest.skip("only root may make a mount namespace")
    kept = "\n".join(str(mounted.path) for mounted in among)
    find_others = """awk '$3 == "fuse.cloudsimfs" {print $2}' /proc/self/mounts | grep -vxF -- "$0\""""
    hide = f'for top in $({find_others}); do umount -l "$top"; done; cd "$1" && shift && exec "$@"'
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, kept, cwd]
    return subprocess.run(
        [*alone, sys.executable, "-m", "cloudsimfs", *map(str, arguments)],
        capture_output=True,
        env=client_environment(),
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=patient(60),
        check=False,
    )


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
