"""Random work, the daemon killed at a random moment; `scripts/soak` does the same many times."""

from __future__ import annotations

from pathlib import Path

import pytest

from soaking import crash_run


@pytest.mark.parametrize(("api", "seed"), [("v2", 4), ("v2", 20), ("v1", 23)])
def test_a_kill_at_a_random_moment(mount_base: Path, api: str, seed: int) -> None:
    crash_run(mount_base, seed, api)
