"""The sandbox's storage against a simple model of it, under random changes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cloudsimfs.sandbox.blobs import Blobs
from cloudsimfs.sandbox.settings import Clock, Settings
from cloudsimfs.sandbox.store import NoEntry, Store, Visible

PATHS = ("a", "d/a", "d/b", "d/e/a", "f/a")
LAGS = {Visible.NOW: 0.0, Visible.LAGGED: 20.0, Visible.CACHED: 100.0}

steps = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(PATHS), st.sampled_from(list(Visible))),
    st.tuples(st.just("delete"), st.sampled_from((*PATHS, "d", "d/e", "f"))),
    st.tuples(st.just("remove"), st.sampled_from((*PATHS, "d"))),
    st.tuples(st.just("wait"), st.sampled_from((6.0, 21.0, 101.0))),
    st.just(("delete-cache",)),
)


class StillClock(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.time = 1e9

    def now(self) -> float:
        return self.time


class Model:
    """Each path's stored size, the size shown, and when and how the one becomes the other."""

    def __init__(self) -> None:
        self.stored: dict[str, int] = {}
        self.shown: dict[str, int] = {}
        self.waiting: dict[str, tuple[float, bool]] = {}

    def change(self, path: str, size: int | None, due: float, now: float, cached: bool = False) -> None:
        self.stored.pop(path, None)
        if size is not None:
            self.stored[path] = size
        self.waiting[path] = (due, cached)
        self.settle(now)

    def settle(self, now: float, delete_cache: bool = False) -> None:
        for path, (due, cached) in list(self.waiting.items()):
            if due <= now or (cached and delete_cache):
                del self.waiting[path]
                self.shown.pop(path, None)
                if path in self.stored:
                    self.shown[path] = self.stored[path]

    def folders(self, files: dict[str, int]) -> set[str]:
        return {str(parent) for path in files for parent in Path(path).parents} - {"."}


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=25))
def test_listings_follow_the_model(sequence: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        clock, model = StillClock(), Model()
        options = Settings(listing_lag=20.0, delete_lag=5.0, cache_seconds=100.0)
        store = Store(Blobs(Path(directory)), clock, options)
        for size, step in enumerate(sequence):
            _apply(store, clock, model, step, size)
            _compare(store, model)
        assert sum(1 for _ in Path(directory).iterdir()) == 0  # all of it is small


def _apply(store: Store, clock: StillClock, model: Model, step: tuple[Any, ...], size: int) -> None:
    now = clock.time
    if step[0] == "put":
        _, path, visible = step
        old = store.stored(path)
        new = store.put(path, store.blobs.make(b"x" * size), visible)
        assert old is None or old.id == new.id
        model.change(path, size, now + LAGS[visible], now, visible is Visible.CACHED)
    elif step[0] in ("delete", "remove"):
        gone = [path for path in model.stored if path == step[1] or path.startswith(step[1] + "/")]
        try:
            if step[0] == "remove":
                store.remove(step[1])
            else:
                entry_id = store.folder_ids().get(step[1])
                file = store.stored(step[1])
                store.delete(file.id if file else entry_id if entry_id is not None else -1)
        except NoEntry:
            assert not gone
        for path in gone:
            model.change(path, None, now + (5.0 if step[0] == "delete" else 0.0), now)
    elif step[0] == "wait":
        clock.time += step[1]
        model.settle(clock.time)
    else:
        store.delete_cache()
        model.settle(clock.time, delete_cache=True)


def _compare(store: Store, model: Model) -> None:
    entries = store.all_entries()
    assert {e["name"]: e["size"] for e in entries if e["type"] == "file"} == model.shown
    assert {e["name"] for e in entries if e["type"] == "dir"} == model.folders(model.shown)
    assert {path: file.blob.size for path, file in store.files().items()} == model.stored
    assert len({e["id"] for e in entries}) == len(entries)
    for entry in entries:
        assert store.entry(entry["id"]) == store.entry_at(entry["name"]) == entry
        if entry["type"] == "dir":
            below = [other for other in entries if other["dirname"] == entry["name"]]
            assert sorted(store.children(entry["id"]), key=lambda e: e["id"]) == sorted(below, key=lambda e: e["id"])


def test_replaced_and_deleted_versions_leave_no_bytes(tmp_path: Path) -> None:
    store = Store(Blobs(tmp_path), Clock(), Settings())
    for content in (b"a" * 100_000, b"b" * 100_000):
        store.put("x", store.blobs.make(content), Visible.CACHED)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"b" * 100_000]
    store.remove("x")
    assert list(tmp_path.iterdir()) == []
