"""Ordinary programs on the mount: what they store is what the service has, and what they read is what was stored."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudsimfs.sandbox import CASES, Sandbox
from harness import Mounted, MountFactory, Tree, client_environment, patient, read_tree, write_tree

Program = Callable[..., str]
CASE: Tree = read_tree(CASES / "heated-plate") | {"0/T": os.urandom(40_000), "0/U": b"", "Ordner ü/läuft": b"\0\xff"}


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A case folder on the local disk."""
    folder = tmp_path / "case"
    write_tree(folder, CASE)
    return folder


def in_case(name: str) -> Tree:
    return {f"{name}/{path}": data for path, data in CASE.items()}


def test_cp_there_and_back(m: Mounted, case: Path, tmp_path: Path, run_program: Program) -> None:
    run_program("cp", "-r", case, m.path / "case")
    run_program("diff", "-r", case, m.path / "case")
    assert m.settle() == in_case("case")
    m.remount()
    run_program("cp", "-r", m.path / "case", tmp_path / "back")
    run_program("diff", "-r", case, tmp_path / "back")


def test_cp_within_the_mount(m: Mounted, case: Path, run_program: Program) -> None:
    run_program("cp", "-a", case, m.path / "one")
    run_program("cp", "-a", m.path / "one", m.path / "two")
    run_program("mv", m.path / "one", m.path / "three")
    run_program("diff", "-r", m.path / "two", m.path / "three")
    assert m.settle() == in_case("two") | in_case("three")
    run_program("rm", "-r", m.path / "two")
    assert m.settle() == in_case("three")


def test_find(box: Sandbox, m: Mounted, case: Path, run_program: Program) -> None:
    box.populate(in_case("case"))
    (m.path / ".cloudsimfs/refresh").write_text("/")
    found = run_program("find", ".", "-type", "f", cwd=m.path / "case").splitlines()
    assert sorted(found) == sorted(f"./{path}" for path in CASE)
    assert run_program("find", m.path / "case", "-size", "+30k") == f"{m.path}/case/0/T\n"
    run_program("find", m.path, "-ls")


def test_rsync_twice_transfers_nothing_the_second_time(m: Mounted, case: Path, run_program: Program) -> None:
    def rsync() -> list[str]:
        out = run_program("rsync", "-a", "--out-format=%i %n", f"{case}/", f"{m.path}/case/")
        return out.splitlines()

    assert len(rsync()) > len(CASE)
    assert m.settle() == in_case("case")
    assert rsync() == []
    m.remount()
    assert rsync() == []
    (case / "0/U").write_bytes(b"changed")
    assert [line.split()[1] for line in rsync()] == ["0/U"]
    assert m.settle() == in_case("case") | {"case/0/U": b"changed"}


def test_rsync_back(box: Sandbox, m: Mounted, tmp_path: Path, run_program: Program) -> None:
    box.populate(in_case("case"))
    (m.path / ".cloudsimfs/refresh").write_text("/")
    for expected in (len(CASE), 0):
        out = run_program("rsync", "-a", "--out-format=%i", f"{m.path}/case/", f"{tmp_path}/back/")
        assert sum(line.startswith(">f") for line in out.splitlines()) == expected
    assert read_tree(tmp_path / "back") == CASE


@pytest.mark.parametrize("options", ["", "set backup", "set backupcopy=yes", "set nowritebackup"])
def test_vim_saves_once(box: Sandbox, mount: MountFactory, options: str, run_program: Program) -> None:
    box.put("controlDict", b"endTime 100;\n")
    m = mount(write_back=0.5)
    script = ["-c", options, "-c", "%s/100/200/", "-c", "wq"]
    run_program("vim", "-u", "NONE", "-es", *script, m.path / "controlDict", env={"HOME": "/nonexistent"})
    assert m.settle() == {"controlDict": b"endTime 200;\n"}
    assert box.calls.counts()["object-put"] == 1


def test_tar(m: Mounted, case: Path, tmp_path: Path, run_program: Program) -> None:
    with tarfile.open(tmp_path / "case.tar", "w") as archive:
        archive.add(case, "case")
    run_program("tar", "-x", "-f", tmp_path / "case.tar", "-C", m.path)
    assert m.settle() == in_case("case")
    run_program("tar", "-c", "-f", m.path / "back.tar", "-C", m.path, "case")
    with tarfile.open(m.path / "back.tar") as archive:
        assert {info.name for info in archive if info.isfile()} == set(in_case("case"))
    m.flush()
    assert box_size(m, "back.tar") == (m.path / "back.tar").stat().st_size


def box_size(m: Mounted, path: str) -> int:
    size = m.box.entry(path)["size"]
    assert isinstance(size, int)
    return size


def test_a_large_file_there_and_back(m: Mounted, tmp_path: Path, run_program: Program) -> None:
    block, blocks = os.urandom(1 << 20), 200
    digest = hashlib.md5(usedforsecurity=False)
    with open(tmp_path / "large", "wb") as file:
        for number in range(blocks):
            piece = number.to_bytes(8) + block[8:]
            digest.update(piece)
            file.write(piece)
    run_program("cp", tmp_path / "large", m.path / "large")
    (tmp_path / "large").unlink()
    assert run_program("md5sum", m.path / "large").split()[0] == digest.hexdigest()
    m.flush()
    assert box_size(m, "large") == blocks << 20
    m.umount()
    m.option(cache_dir=m.cache.with_name("another"))
    m.start()
    assert run_program("md5sum", m.path / "large").split()[0] == digest.hexdigest()


def test_git(m: Mounted, run_program: Program) -> None:
    def git(*words: str) -> str:
        settings = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "safe.directory=*"]
        return run_program("git", "-C", m.path / "repo", *settings, *words, env={"HOME": "/nonexistent"})

    write_tree(m.path / "repo", CASE)
    git("init", "-q", ".")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    (m.path / "repo/0/U").write_bytes(b"changed")
    git("commit", "-q", "-a", "-m", "two")
    git("gc", "-q")
    git("fsck", "--strict")
    assert git("status", "--porcelain") == ""
    m.settle()
    m.remount()
    assert len(git("log", "--oneline").splitlines()) == 2
    git("fsck", "--strict")
    assert git("status", "--porcelain") == ""


@pytest.mark.parametrize("mode", ["delete", "truncate"])
def test_sqlite(m: Mounted, mode: str, run_program: Program) -> None:
    database = m.path / "results.db"
    run_program("sqlite3", database, f"PRAGMA journal_mode={mode}; CREATE TABLE t (n INTEGER, s TEXT);")
    for number in range(3):
        run_program("sqlite3", database, f"INSERT INTO t VALUES ({number}, hex(randomblob(3000)));")
    m.settle()
    m.remount()
    assert run_program("sqlite3", database, "PRAGMA integrity_check; SELECT n FROM t;").split() == [
        "ok",
        "0",
        "1",
        "2",
    ]
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM t WHERE n = 1")
    connection.close()
    m.settle()
    assert run_program("sqlite3", database, "SELECT n FROM t;").split() == ["0", "2"]


def test_shell_idioms(m: Mounted, run_program: Program) -> None:
    commands = """
        echo one > f; echo two >> f; printf '%s\\n' three four | tee -a f > /dev/null
        mkdir -p a/b/c; touch a/b/c/x; cp f a/b/g; mv a/b/g a/g; ln -s f link 2> /dev/null && exit 1
        sed -i s/two/zwei/ f; truncate -s 20 a/g; dd if=/dev/zero of=z bs=1000 count=3 conv=notrunc status=none
        rm -r a/b; install -m 600 f a/installed; test "$(stat -c %a a/installed)" = 600; sort -o f f; : > e
    """
    run_program("sh", "-e", "-c", commands, cwd=m.path)
    expected = {
        "f": b"four\none\nthree\nzwei\n",
        "a/g": b"one\ntwo\nthree\nfour\n".ljust(20, b"\0")[:20],
        "z": bytes(3000),
        "a/installed": b"one\nzwei\nthree\nfour\n",
        "e": b"",
    }
    assert m.settle() == expected


def test_the_demo_shows_a_whole_session_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cloudsimfs", "demo", "--api", "v1"],
        env=client_environment() | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=patient(170),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "results read through the mount" in done.stdout
    assert list(tmp_path.iterdir()) == []
