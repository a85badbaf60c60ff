"""How editors and office programs save, and that the service sees whole versions only, and no temporary file."""

from __future__ import annotations

import os
import pty
import subprocess
import time
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, need, stored_versions, wait_until

pytestmark = pytest.mark.parametrize("api", ["v2"])

BEFORE, AFTER = b"endTime 100;\n" * 50, b"endTime 200;\n" * 30
NAME = "case/system/controlDict"


@pytest.fixture
def file(box: Sandbox, m: Mounted) -> Path:
    box.put(NAME, BEFORE)
    (m.path / ".cloudsimfs/refresh").write_text("/")
    return m.path / NAME


def save_in_place(file: Path) -> None:
    """VS Code, gedit over FUSE, Kate by default: truncate, write, fsync."""
    file.read_bytes()
    with file.open("r+b", buffering=0) as stream:
        stream.truncate(0)
        stream.write(AFTER[:100])
        stream.write(AFTER[100:])
        os.fsync(stream.fileno())


def save_by_rename(file: Path) -> None:
    """VS Code's atomic save, PyCharm, Emacs' `write-region` with precious files: a neighbour is renamed over it."""
    temporary = file.with_name(f"{file.name}.vsctmp")
    temporary.write_bytes(AFTER)
    temporary.chmod(file.stat().st_mode & 0o777)
    temporary.replace(file)


def save_by_backup(file: Path) -> None:
    """Emacs, vim with backups: the old one is renamed away, the new one written under its name."""
    backup = file.with_name(f"{file.name}~")
    file.rename(backup)
    with file.open("xb") as stream:
        stream.write(AFTER)
        os.fsync(stream.fileno())


def save_as_libreoffice(file: Path) -> None:
    """A lock file beside it for as long as it is open; the document is copied over by a temporary one."""
    lock = file.with_name(f".~lock.{file.name}#")
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.write(fd, b",user,host,21.11.2026 10:00,file:///home/user;")
    os.close(fd)
    temporary = file.with_name("lu1234abcd.tmp")
    temporary.write_bytes(AFTER)
    with file.open("r+b") as stream:
        stream.write(temporary.read_bytes())
        stream.truncate()
    temporary.unlink()
    lock.unlink()


@pytest.mark.parametrize("save", [save_in_place, save_by_rename, save_by_backup, save_as_libreoffice])
def test_a_save_stores_the_new_version_once(box: Sandbox, m: Mounted, file: Path, save) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    versions = box.record_versions()
    save(file)
    m.flush()
    assert stored_versions(versions, NAME) == [AFTER]
    assert [path for path, _ in versions] == [NAME]
    assert box.files() == {NAME: AFTER}
    m.remount()
    assert file.read_bytes() == AFTER


def test_nano(box: Sandbox, m: Mounted, file: Path) -> None:
    """Driven by keys on a terminal, since it has no other way."""
    keyboard, terminal = pty.openpty()
    command = [need("nano"), "--ignorercfiles", "--backup", str(file)]
    environment = {**os.environ, "TERM": "xterm", "HOME": "/nonexistent"}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as editor:
        os.close(terminal)
        os.set_blocking(keyboard, False)
        wait_until(lambda: b"controlDict" in os.read(keyboard, 65536), "nano shows the file")
        os.write(keyboard, b"// changed\r\x0f\r\x18")  # write out, confirm the name, exit
        wait_until(lambda: _drain(keyboard) and editor.poll() is not None, "nano ends")
    os.close(keyboard)
    assert editor.returncode == 0
    assert m.settle() == {NAME: b"// changed\n" + BEFORE}


def _drain(terminal: int) -> bool:
    """Read what is there, so that the program can write on."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # nothing more, or the other side is closed
        return True
    return True


def test_saving_again_and_again_uploads_the_last(box: Sandbox, mount: MountFactory) -> None:
    """Auto-save while typing: what counts is what is there when the typing pauses."""
    m = mount(write_back=1.0)
    file = m.path / "case.ini"
    versions = box.record_versions()
    for number in range(12):
        file.write_bytes(b"steps = %d\n" % number)
        time.sleep(0.02)  # the pause of a typist
    m.flush()
    assert stored_versions(versions, "case.ini") == [b"steps = 11\n"]
