"""The arrows of design.md section 1, read from the import statements: one importer per dependency, nothing upward."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cloudsimfs

PACKAGE = Path(cloudsimfs.__file__).parent

IMPORTERS = {
    "mfusepy": {"kernel"},
    "fuse": {"kernel"},
    "requests": {"service.transport"},
    "urllib3": {"service.transport"},
    "cachetools": {"listingcache"},
    "click": {"cli"},
    "aiohttp": {"sandbox"},
    "keyring": {"keys"},
    "sqlite3": {"database", "listings"},
}
"""Third parties, and SQLite: the only modules, or packages of modules, that may import them."""

LAYERS = [
    {"errors", "paths", "ranges", "readahead", "growth", "disk"},
    {"clock"},
    {"meter"},
    {"service"},
    {"attrs", "rows", "database"},
    {"fetchpool", "remote", "fetching"},
    {"rangelog", "presence", "backing", "content"},
    {"inode", "listings", "listingcache", "walks", "workqueue"},
    {"virtual", "runstore", "lookups", "runs", "runcommands", "pictures", "poller"},
    {"journal", "overlay", "dcache"},
    {"cachedir"},
    {"datacache"},
    {"syncer", "sources", "servicecache", "deletes"},
    {"writeback"},
    {"tree"},
    {"tombstones"},
    {"changes", "replay", "handles", "conflicts"},
    {"rename", "launch", "simulations", "runsetup"},
    {"settings"},
    {"profiles", "mountoptions"},
    {"keys"},
    {"recovery", "adoption"},
    {"control", "config", "mountpoint", "kernel", "logs", "previews"},
    {"operations", "daemon", "doctor"},
    {"report", "metrics"},
    {"mount"},
    {"cli"},
    {"__main__"},
]
"""From the bottom up; a module imports from its own layer and from those below."""


def modules() -> list[tuple[str, Path]]:
    """(dotted name without the package, file) of every module but `__init__` of the top."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name:
            found.append((name, file))
    return found


def imports(file: Path, *, typing_too: bool = False) -> Iterator[str]:
    """The modules a file imports, anywhere in it; by default without what only annotations need."""
    tree = ast.parse(file.read_text())
    known = {f"cloudsimfs.{name}" for name, _ in modules()}
    for node in ast.walk(tree) if typing_too else _runtime_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            assert node.module is not None
            for alias in node.names:  # a submodule, or a name in the module
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _runtime_nodes(node)


def own_imports(file: Path) -> set[str]:
    """The modules of this package that a file imports at run time."""
    known = {name for name, _ in modules()}
    found = {name.removeprefix("cloudsimfs.") for name in imports(file) if name.startswith("cloudsimfs.")}
    return found & known


def layer_of(name: str) -> int:
    top = name.partition(".")[0]
    for number, layer in enumerate(LAYERS):
        if top in layer:
            return number
    pytest.fail(f"{name} stands in no layer: add it to LAYERS here, and to design.md section 1")


def within(name: str, places: set[str]) -> bool:
    return any(name == place or name.startswith(place + ".") for place in places)


@pytest.mark.parametrize("dependency", sorted(IMPORTERS))
def test_a_dependency_has_one_importer(dependency: str) -> None:
    importers = {
        name
        for name, file in modules()
        if any(found.partition(".")[0] == dependency for found in imports(file, typing_too=True))
    }
    outside = {name for name in importers if not within(name, IMPORTERS[dependency])}
    assert not outside
    assert importers or dependency in ("fuse", "urllib3"), f"nobody imports {dependency}"


def test_no_module_imports_upward() -> None:
    wrong = [
        f"{name} imports {found}"
        for name, file in modules()
        if not within(name, {"sandbox"})
        for found in own_imports(file)
        if not within(found, {"sandbox"}) and layer_of(found) > layer_of(name)
    ]
    assert wrong == []


def test_only_the_command_line_knows_the_sandbox() -> None:
    users = {name for name, file in modules() if any(within(found, {"sandbox"}) for found in own_imports(file))}
    assert {name for name in users if not within(name, {"sandbox"})} == {"cli.sandbox"}


def test_the_sandbox_shares_no_rules_with_the_client() -> None:
    allowed = {"sandbox", "paths", "service.model"}
    wrong = [
        f"{name} imports {found}"
        for name, file in modules()
        if within(name, {"sandbox"})
        for found in own_imports(file)
        if not within(found, allowed)
    ]
    assert wrong == []


def test_the_service_knows_nothing_of_files() -> None:
    allowed = {"service", "errors", "paths", "clock"}
    wrong = [
        f"{name} imports {found}"
        for name, file in modules()
        if within(name, {"service"})
        for found in own_imports(file)
        if not within(found, allowed)
    ]
    assert wrong == []


def test_there_are_no_cycles() -> None:
    arrows = {name: own_imports(file) - {name} for name, file in modules()}
    while free := {name for name, found in arrows.items() if not found & arrows.keys()}:
        arrows = {name: found for name, found in arrows.items() if name not in free}
    assert arrows == {}
