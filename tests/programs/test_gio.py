"""What file managers do through GIO, done by its own program: content on the service, and names as users see them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, need, patient, read_tree, write_tree

CASE = {"system/controlDict": b"endTime 100;\n", "0/U": b"(0 0 0)", "plot.png": bytes(range(256)) * 40}
Gio = Callable[..., str]


@pytest.fixture
def gio(run_program: Callable[..., str], tmp_path: Path) -> Gio:
    """The program, with an empty home of its own."""
    need("gio")
    home = tmp_path / "home"
    home.mkdir()

    def run(*words: str | Path) -> str:
        return run_program("gio", *words, env={"HOME": str(home), "XDG_DATA_HOME": str(home / "data")})

    return run


@pytest.fixture
def case(m: Mounted) -> Path:
    """A case folder in the mount."""
    write_tree(m.path / "case", CASE)
    m.settle()
    return m.path / "case"


def test_copy_out_and_in(m: Mounted, case: Path, gio: Gio, tmp_path: Path) -> None:
    gio("copy", case / "plot.png", tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes() == CASE["plot.png"]
    gio("copy", "-p", tmp_path / "out.png", case / "in.png")
    gio("copy", case / "in.png", case / "again.png")
    gio("copy", tmp_path / "out.png", case / "0/U")  # overwrites
    assert m.settle() == {
        **{f"case/{name}": data for name, data in CASE.items()},
        **{f"case/{name}": CASE["plot.png"] for name in ("in.png", "again.png", "0/U")},
    }


def test_move_and_rename(m: Mounted, case: Path, gio: Gio, tmp_path: Path) -> None:
    gio("rename", case / "plot.png", "residuals.png")
    gio("move", case / "system/controlDict", case / "0/controlDict")
    gio("rename", case, "case2")
    gio("move", m.path / "case2/0/U", tmp_path / "U")  # to another filesystem: a copy and a delete
    assert (tmp_path / "U").read_bytes() == CASE["0/U"]
    assert m.settle() == {
        "case2/residuals.png": CASE["plot.png"],
        "case2/0/controlDict": CASE["system/controlDict"],
    }
    assert sorted(path.name for path in (m.path / "case2").iterdir()) == ["0", "residuals.png", "system"]


def test_trash_is_refused_and_remove_works(m: Mounted, case: Path, gio: Gio, tmp_path: Path) -> None:
    """A refused trash is what makes a file manager offer to delete for good."""
    for victim in (case / "plot.png", case / "system"):
        done = subprocess.run(
            ["gio", "trash", victim], capture_output=True, text=True, env={"HOME": str(tmp_path)}, check=False
        )
        assert done.returncode != 0
        assert "trash" in done.stderr.lower()
        assert victim.exists()
    assert not list(m.path.glob(".Trash*"))
    gio("remove", case / "plot.png")
    gio("remove", case / "system/controlDict")
    gio("remove", case / "system")
    assert m.settle() == {"case/0/U": CASE["0/U"]}


def test_save_cat_list_mkdir(m: Mounted, case: Path, gio: Gio, tmp_path: Path) -> None:
    gio("mkdir", "-p", case / "constant/polyMesh")
    assert sorted(gio("list", case).split()) == ["0", "constant", "plot.png", "system"]
    assert gio("cat", case / "system/controlDict") == "endTime 100;\n"
    (tmp_path / "text").write_text("endTime 200;\n")
    for name in ("system/controlDict", "constant/polyMesh/points"):  # over an old file, and a new one
        subprocess.run(
            ["gio", "save", case / name], stdin=(tmp_path / "text").open("rb"), timeout=patient(30), check=True
        )
    stored = m.settle()
    assert stored["case/system/controlDict"] == stored["case/constant/polyMesh/points"] == b"endTime 200;\n"
    assert not [name for name in stored if "goutputstream" in name]


def test_info(case: Path, gio: Gio) -> None:
    shown = gio("info", case / "plot.png")
    assert "standard::content-type: image/png" in shown
    assert "standard::size: 10240" in shown
    assert "access::can-write: TRUE" in shown
    assert "access::can-delete: TRUE" in shown
    about = gio("info", "-f", case)
    assert "filesystem::type: fuse" in about
    assert "filesystem::readonly: TRUE" not in about


def test_a_listing_with_icons_costs_a_listing(box: Sandbox, mount: MountFactory, api: str, gio: Gio) -> None:
    """Names that tell their type are not opened. (.png is none of them: it may be an animation, another type.)"""
    if not Path("/usr/share/mime/globs2").exists():
        pytest.skip("shared-mime-info is not installed")
    box.populate({f"results/plot_{number:03}.jpg": b"..." for number in range(40)})
    m = mount()
    box.calls.reset()
    gio(
        "list",
        "-l",
        "-a",
        "standard::content-type,standard::icon,time::modified,access::can-write",
        m.path / "results",
    )
    assert box.calls.counts() == {"list": 1 if api == "v1" else 2}


def test_read_only(box: Sandbox, mount: MountFactory, gio: Gio) -> None:
    box.populate({f"case/{name}": data for name, data in CASE.items()})
    m = mount(read_only=True)
    assert "access::can-write: FALSE" in gio("info", "-a", "access::can-write", m.path / "case/plot.png")
    assert "filesystem::readonly: TRUE" in gio("info", "-f", m.path)
    assert read_tree(m.path) == box.files()
