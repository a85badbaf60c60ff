"""A recorded run, stopped at many of its moments; `scripts/soak --crash-points` stops it at all of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from crashpoints import check, crash_again
from recorded_run import record

PREFIXES, POWER_LOSSES, REORDERINGS = 12, 3, 3


@pytest.mark.parametrize("api", ["v2"])
def test_a_daemon_that_dies_at_any_moment_loses_nothing(mount_base: Path, tmp_path: Path, api: str) -> None:
    run = record(mount_base / tmp_path.name, api, seed=1)
    points = random.Random(1).sample(range(1, len(run.ops)), PREFIXES)
    tally = check(run, 1, prefixes=points, powers=[])
    assert tally.failures == []
    assert tally.prefixes > PREFIXES // 2


@pytest.mark.parametrize("api", ["v1"])
def test_a_power_loss_at_any_moment_takes_nothing_that_was_fsynced(
    mount_base: Path, tmp_path: Path, api: str
) -> None:
    run = record(mount_base / tmp_path.name, api, seed=1, uploads=False)
    points = random.Random(1).sample(range(1, len(run.ops)), POWER_LOSSES)
    tally = check(run, 1, most=REORDERINGS, prefixes=[], powers=points)
    assert tally.failures == []
    assert tally.power_losses > POWER_LOSSES


@pytest.mark.parametrize("api", ["v2"])
def test_a_second_crash_loses_nothing_either(mount_base: Path, tmp_path: Path, api: str) -> None:
    place = mount_base / tmp_path.name
    run = record(place, api, seed=2)
    tally = crash_again(run, len(run.ops) // 2, place / "again", 1, 6)
    assert tally.failures == []
    assert tally.prefixes == 6
