"""Case trees as solvers and engineers handle them: OpenFOAM's layout, archives, repositories, databases."""

from __future__ import annotations

import os
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, Tree, need, read_tree, run, write_tree

pytestmark = pytest.mark.parametrize("api", ["v2"])

Program = Callable[..., str]
HEADER = b"FoamFile { version 2.0; format ascii; class %s; object %s; }\n"
DICTIONARIES = [
    "system/controlDict",
    "system/fvSchemes",
    "system/fvSolution",
    "system/decomposeParDict",
    "constant/g",
]
MESH = ["points", "faces", "owner", "neighbour", "boundary"]
FIELDS = ["U", "p", "k", "omega", "nut"]


def openfoam_case(processors: int) -> Tree:
    """A decomposed case: dictionaries, a mesh, and per processor a mesh and the fields of a time step."""

    def made(kind: str, name: str) -> bytes:
        return HEADER % (kind.encode(), name.encode()) + os.urandom(600).hex().encode()

    places = ["constant", *(f"processor{number}/constant" for number in range(processors))]
    tree = {name: made("dictionary", name) for name in DICTIONARIES}
    tree |= {f"{place}/polyMesh/{name}": made("mesh", name) for place in places for name in MESH}
    times = ["0", *(f"processor{number}/{time}" for number in range(processors) for time in ("0", "0.005"))]
    tree |= {f"{time}/{name}": made("volScalarField", name) for time in times for name in FIELDS}
    return tree | {"Allrun": b"#!/bin/sh\nexec blockMesh\n", "case.foam": b"", "log.simpleFoam": b"Time = 1\n" * 3000}


def in_folder(tree: Tree, name: str) -> Tree:
    return {f"{name}/{path}": data for path, data in tree.items()}


def test_an_openfoam_case_through_tar(box: Sandbox, m: Mounted, tmp_path: Path, run_program: Program) -> None:
    case = openfoam_case(processors=4)
    write_tree(tmp_path / "case", case)
    (tmp_path / "case/Allrun").chmod(0o755)
    run_program("tar", "-czf", tmp_path / "case.tgz", "-C", tmp_path, "case")
    run_program("tar", "-xzf", tmp_path / "case.tgz", "-C", m.path)
    assert m.settle() == in_folder(case, "case")
    assert os.access(m.path / "case/Allrun", os.X_OK)
    # as OpenFOAM's scripts clean up: processors and logs go, a time step stays
    run_program("sh", "-c", "rm -rf processor* log.* && mv 0 0.orig && cp -r 0.orig 0", cwd=m.path / "case")
    kept = {path: data for path, data in case.items() if not path.startswith(("processor", "log."))}
    kept = {path.replace("0/", "0.orig/", 1) if path.startswith("0/") else path: data for path, data in kept.items()}
    kept |= {f"0/{name}": kept[f"0.orig/{name}"] for name in FIELDS}
    assert m.settle() == in_folder(kept, "case")
    m.remount()
    run_program("tar", "-cf", tmp_path / "back.tar", "-C", m.path, "case")
    run_program("tar", "-xf", tmp_path / "back.tar", "-C", tmp_path, "--one-top-level=back")
    assert read_tree(tmp_path / "back/case") == kept


def test_zip_and_unzip(m: Mounted, tmp_path: Path, run_program: Program) -> None:
    case = openfoam_case(processors=1)
    write_tree(m.path / "case", case)
    run_program("zip", "-qr", "case.zip", "case", cwd=m.path)
    run_program("zip", "-q", "case.zip", "-d", "case/log.simpleFoam", cwd=m.path)  # rewrites it beside itself
    run_program("unzip", "-q", m.path / "case.zip", "-d", m.path / "copy")
    del case["log.simpleFoam"]
    assert read_tree(m.path / "copy/case") == case
    stored = m.settle()
    assert sorted(path for path in stored if "/" not in path) == ["case.zip"]
    m.remount()
    with zipfile.ZipFile(m.path / "case.zip") as archive:
        assert archive.testzip() is None


def test_a_repository_is_cloned_onto_the_mount_and_from_it(m: Mounted, tmp_path: Path, run_program: Program) -> None:
    def git(*words: str | Path) -> str:
        settings = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "safe.directory=*"]
        return run_program("git", *settings, *words, env={"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"})

    origin, clone = tmp_path / "origin", m.path / "clone"
    write_tree(origin, openfoam_case(processors=0))
    git("init", "-q", "-b", "main", origin)
    git("-C", origin, "add", ".")
    git("-C", origin, "commit", "-q", "-m", "one")
    git("clone", "-q", "--no-local", origin, clone)
    assert git("-C", clone, "status", "--porcelain") == ""
    (clone / "0/U").write_bytes(b"changed")
    git("-C", clone, "switch", "-q", "-c", "branch")
    git("-C", clone, "commit", "-q", "-a", "-m", "two")
    git("-C", clone, "stash", "list")
    git("-C", clone, "switch", "-q", "main")
    m.settle()
    m.remount()
    git("-C", clone, "fsck", "--strict")
    git("clone", "-q", "--no-local", "-b", "branch", clone, tmp_path / "again")
    assert (tmp_path / "again/0/U").read_bytes() == b"changed"


def test_sqlite_with_a_write_ahead_log(m: Mounted) -> None:
    need("sqlite3")
    database = m.path / "results.db"
    # in a process of its own: the shared memory of the log is mapped
    script = "PRAGMA journal_mode=wal; CREATE TABLE t (n); INSERT INTO t VALUES (1), (2); SELECT count(*) FROM t;"
    assert run("sqlite3", database, script).split() == ["wal", "2"]
    assert run("sqlite3", database, "INSERT INTO t VALUES (3); PRAGMA wal_checkpoint(TRUNCATE);").split() == ["0|0|0"]
    m.settle()
    m.remount()
    assert run("sqlite3", database, "PRAGMA integrity_check; SELECT sum(n) FROM t;").split() == ["ok", "6"]
    m.flush()
    copy = m.cache / "copy.db"
    copy.write_bytes(m.box.files()["results.db"])
    with sqlite3.connect(copy) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (3,)
    connection.close()


def test_python_copies_a_tree(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    """shutil uses sendfile(2) and copies times and modes."""
    case = openfoam_case(processors=1)
    write_tree(tmp_path / "case", case)
    m = mount()
    shutil.copytree(tmp_path / "case", m.path / "case")
    shutil.copytree(m.path / "case", m.path / "copy")
    shutil.rmtree(m.path / "case")
    assert m.settle() == in_folder(case, "copy")
