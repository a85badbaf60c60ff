"""One file under random operations, checked byte for byte; `scripts/soak --fsx` does the same for longer."""

from __future__ import annotations

import pytest

from harness import MountFactory
from soaking import fsx_run


@pytest.mark.parametrize(("api", "seed", "stored"), [("v1", 1, 0), ("v2", 2, 700_000), ("v2", 3, 6_000_000)])
def test_random_operations_on_one_file(mount: MountFactory, seed: int, stored: int) -> None:
    fsx_run(mount(start=False, write_back=0.02), seed, 1200, stored=stored)
