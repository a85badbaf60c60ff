"""Processes work at random on the mount and on a local disk alike; `scripts/soak --diff` does much more of the same.

These few are of a calm shape: the service answers, nobody else works there, and folders stay where they are.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from differential import differential_run
from fuzzstage import plan_of

CALM = {"faults": False, "lies": False, "others": False, "hours": False, "clashes": False, "leaving": False}


@pytest.mark.parametrize(("seed", "api", "ttl", "page_size"), [(1, "v2", 60, 3), (1, "v1", 60, 50)])
def test_the_mount_does_what_a_disk_does(mount_base: Path, seed: int, api: str, ttl: int, page_size: int) -> None:
    plan = plan_of(seed, api=api, ttl=ttl, page_size=page_size, write_back=0.1, listing_lag=0, **CALM)
    assert differential_run(mount_base, plan, 800, epoch=50).kills
