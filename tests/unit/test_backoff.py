"""Pauses before a repetition."""

import pytest

from cloudsimfs.concurrency import backoff


@pytest.mark.parametrize(("failures", "longest"), [(1, 1.0), (2, 2.0), (4, 8.0), (20, 300.0), (10**6, 300.0)])
def test_a_pause_doubles_up_to_the_longest(failures: int, longest: float) -> None:
    assert backoff.ceiling(failures, first=1.0, longest=300.0) == longest
    for least in (0.0, 0.5):
        pauses = [backoff.pause(failures, first=1.0, longest=300.0, least=least) for _ in range(100)]
        assert all(least * longest <= pause <= longest for pause in pauses)
        assert len(set(pauses)) > 1
