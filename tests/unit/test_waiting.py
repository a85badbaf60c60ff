"""One helper for all waits that a signal or a deadline may end."""

from __future__ import annotations

import threading

import pytest

from cloudsimfs.concurrency.waiting import never, wait_for
from cloudsimfs.errors import Cancelled


def test_a_wait_ends_when_it_is_done() -> None:
    event = threading.Event()
    threading.Timer(0.05, event.set).start()
    assert wait_for(event.wait, never, "interrupted", poll=0.01)


def test_what_is_done_already_is_never_cancelled() -> None:
    event = threading.Event()
    event.set()
    assert wait_for(event.wait, lambda: True, "interrupted")


def test_an_interrupted_wait_says_what_it_was() -> None:
    with pytest.raises(Cancelled, match="the reader was interrupted"):
        wait_for(threading.Event().wait, lambda: True, "the reader was interrupted", poll=0.01)


def test_a_late_wait_returns_false() -> None:
    looks = iter([False, False, True])
    assert not wait_for(threading.Event().wait, never, "interrupted", is_late=lambda: next(looks), poll=0.01)


def test_what_the_condition_raises_ends_the_wait() -> None:
    def fails(_: float) -> bool:
        raise ValueError

    with pytest.raises(ValueError):
        wait_for(fails, never, "interrupted")
