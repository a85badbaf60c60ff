"""Taking back what the kernel has cached, without a kernel."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cloudsimfs.fuse import binding
from cloudsimfs.fuse.binding import KernelCache
from harness import patient, wait_until


class Library:
    """libfuse, for a kernel that takes its time."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.may_tell = threading.Event()
        context = SimpleNamespace(contents=SimpleNamespace(fuse=None))
        self.fuse_get_context: Any = lambda: context

    def fuse_invalidate_path(self, _fuse: ctypes.c_void_p, path: bytes) -> None:
        assert self.may_tell.wait(patient(20))
        self.told.append(path)


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def cache(library: Library) -> Iterator[KernelCache]:
    made = KernelCache()
    made._library = SimpleNamespace(
        fuse_get_context=library.fuse_get_context, fuse_invalidate_path=library.fuse_invalidate_path
    )
    threads = set(threading.enumerate())
    made.start()
    yield made
    library.may_tell.set()
    made.stop()
    for thread in set(threading.enumerate()) - threads:
        thread.join(patient(20))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "SETTLE_BOUND", 60.0)


@pytest.mark.parametrize("path", ["d", "d/x", None])
def test_who_settles_waits_until_the_kernel_was_told(library: Library, cache: KernelCache, path: str | None) -> None:
    for each in ("d", "d/x"):
        cache.invalidate(each)
    settled = threading.Event()

    def settle() -> None:
        cache.settle(path)
        settled.set()

    waiting = threading.Thread(target=settle)
    waiting.start()
    assert not settled.wait(0.1)
    library.may_tell.set()
    wait_until(settled.is_set, "the kernel was told")
    waiting.join()
    assert {b"/d", b"/d/x"} >= set(library.told) >= ({f"/{path}".encode()} if path else {b"/d", b"/d/x"})


def test_nobody_waits_for_ever_nor_when_there_is_nothing_to_tell(
    library: Library, cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.settle()
    cache.invalidate("f")
    cache.settle("g")
    monkeypatch.setattr(binding, "SETTLE_BOUND", 0.05)
    cache.settle("f")
    assert library.told == []
    monkeypatch.setattr(binding, "SETTLE_BOUND", 60.0)
    cache.stop()
    cache.settle()
