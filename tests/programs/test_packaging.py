"""What is installed: the manual page, the data files, the typed library and its example."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import textwrap
import tomllib
from pathlib import Path

import pytest

import cloudsimfs as package
from cloudsimfs import service
from cloudsimfs.cli.manual import manual_page
from cloudsimfs.sandbox import Sandbox
from harness import ROOT, cloudsimfs, patient

PAGE = ROOT / "cloudsimfs/cloudsimfs.1"


def test_the_manual_page_is_current() -> None:
    assert PAGE.read_text() == manual_page(), "run scripts/manpage"


@pytest.mark.parametrize(
    "command", [["mandoc", "-T", "lint", "-W", "error"], ["groff", "-ww", "-z", "-man", "-Tutf8"]]
)
def test_the_manual_page_is_well_formed(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run([*command, str(PAGE)], capture_output=True, text=True, check=False, timeout=patient(30))
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""


def test_every_data_file_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = [file for files in project["tool"]["setuptools"]["data-files"].values() for file in files]
    assert len(named) == 2
    unit = "cloudsimfs/cloudsimfs@.service"  # where `install-service` finds it, however the package was installed
    assert Path(unit).name in project["tool"]["setuptools"]["package-data"]["cloudsimfs"]
    for file in [*named, unit, "cloudsimfs/py.typed", "README.md", "LICENSE"]:
        assert (ROOT / file).is_file(), file


def test_the_page_on_a_package_index_needs_nothing_beside_it() -> None:
    """An index has no images and files to show beside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / project["readme"]).read_text()
    assert re.findall(r"\]\((?!https://)|<img|pip install", page) == []
    commands = [line.split("#")[0].strip() for line in page.splitlines() if line.startswith("    ")]
    assert len(commands) >= 4
    readme = [line.split("#")[0].strip() for line in (ROOT / "README.md").read_text().splitlines()]
    assert [each for each in commands if each not in readme] == []


def test_the_version() -> None:
    done = cloudsimfs("--version")
    assert done.stdout == f"cloudsimfs, version {package.__version__}\n"


def test_the_librarys_example_works_as_it_stands(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.__doc__ is not None
    found = re.search(r"((?:    .*\n|\n)+)", service.__doc__)
    assert found is not None
    example = textwrap.dedent(found[1]).replace("https://service.example", box.url)
    (tmp_path / "license.json").write_text(json.dumps({"username": "me@example.org", "key": box.key}))
    (tmp_path / "license.json").chmod(0o600)
    box.put("case1/system/controlDict", b"x")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "the docstring of cloudsimfs.service", "exec"), {})
    assert [run["folder"] for run in box.runs()] == ["case1"]
