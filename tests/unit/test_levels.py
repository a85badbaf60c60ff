"""What keeps `pytest tests/unit tests/core` within reach of everybody: no kernel, no FUSE binding, no other tests."""

from __future__ import annotations

import ast
import subprocess
import sys

from harness import ROOT

KERNEL_FREE = sorted(file for level in ("unit", "core") for file in (ROOT / "tests" / level).glob("test_*.py"))
ALL = sorted((ROOT / "tests").glob("*/test_*.py"))
OF_A_MOUNT = {"mount_base", "mount", "m", "prepared", "sims"}  # fixtures that need /dev/fuse
IMPORT_ALL = """
import importlib, sys
sys.modules["mfusepy"] = sys.modules["fuse"] = None
sys.path[:0] = sys.argv[1].split(":")
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def test_unit_and_core_import_no_binding() -> None:
    path = ":".join(str(ROOT / place) for place in (".", "tests/support", "tests/unit", "tests/core"))
    names = [file.stem for file in KERNEL_FREE]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, path, *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_unit_and_core_mount_nothing() -> None:
    """But for a name that a module gives to a fixture of its own."""
    for file in KERNEL_FREE:
        functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        own = {function.name for function in functions}
        wanted = {
            argument.arg for function in functions if _is_filled_in(function) for argument in function.args.args
        }
        assert not wanted & OF_A_MOUNT - own, file


def _is_filled_in(function: ast.FunctionDef) -> bool:
    """Whether pytest gives the arguments: to a test or a fixture."""
    return function.name.startswith("test_") or any(
        "fixture" in ast.unparse(each) for each in function.decorator_list
    )


def test_no_test_module_imports_another() -> None:
    """What two of them need is in tests/support."""
    modules = {file.stem for file in ALL}
    for file in ALL:
        nodes = ast.parse(file.read_text()).body
        assert not modules & {node.module for node in nodes if isinstance(node, ast.ImportFrom)}, file
