"""Taking back what the kernel has cached, without a kernel."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cloudsimfs.fuse import pagecache
from cloudsimfs.fuse.pagecache import KernelCache
from harness import patient, wait_until


class Kernel:
    """A kernel that takes its time."""

    def __init__(self) -> None:
        self.dropped: list[str] = []
        self.may_drop = threading.Event()

    def drop(self, path: str) -> None:
        assert self.may_drop.wait(patient(20))
        self.dropped.append(path)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def cache(kernel: Kernel) -> Iterator[KernelCache]:
    made = KernelCache()
    threads = set(threading.enumerate())
    made.start(kernel.drop)
    yield made
    kernel.may_drop.set()
    made.stop()
    for thread in set(threading.enumerate()) - threads:
        thread.join(patient(20))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagecache, "SETTLE_BOUND", 60.0)


@pytest.mark.parametrize("path", ["d", "d/x", None])
def test_who_settles_waits_until_the_kernel_has_dropped_it(
    kernel: Kernel, cache: KernelCache, path: str | None
) -> None:
    for each in ("d", "d/x"):
        cache.invalidate(each)
    settled = threading.Event()

    def settle() -> None:
        cache.settle(path)
        settled.set()

    waiting = threading.Thread(target=settle)
    waiting.start()
    assert not settled.wait(0.1)
    kernel.may_drop.set()
    wait_until(settled.is_set, "the kernel has dropped it")
    waiting.join()
    assert {"d", "d/x"} >= set(kernel.dropped) >= ({path} if path else {"d", "d/x"})


def test_nobody_waits_for_ever_nor_when_nothing_is_stale(
    kernel: Kernel, cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.settle()
    cache.invalidate("f")
    cache.settle("g")
    monkeypatch.setattr(pagecache, "SETTLE_BOUND", 0.05)
    cache.settle("f")
    assert kernel.dropped == []
    monkeypatch.setattr(pagecache, "SETTLE_BOUND", 60.0)
    cache.stop()
    cache.settle()
