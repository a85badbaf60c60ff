"""A day's work around one lie of the service; `scripts/soak --lies` does it for every lie and every operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from lying import Case, day, lies

DANGEROUS = [
    ("v1", "launch", "case", 2, "done, 404"),
    ("v2", "launch", "case", 2, "done, 429"),
    ("v2", "launch", "case", 1, "500, done later"),
    ("v1", "object-put", "log.txt", 1, "done, 500"),
    ("v2", "object-put", "log.txt", 2, "no answer, done later"),
    ("v2", "object-put", "moved", 1, "as if stored"),
    ("v1", "object-get", "log.txt", 1, "404"),
    ("v1", "delete", "single", 1, "404"),
    ("v1", "delete", "old", 1, "done, 403"),
    ("v2", "list", "", 2, "empty"),
    ("v2", "list", "old", 1, "404"),
    ("v1", "list-all", "", 2, "404"),
]


@pytest.mark.parametrize(("api", "operation", "path", "nth", "name"), DANGEROUS)
def test_one_lie_loses_nothing(
    mount_base: Path, tmp_path: Path, api: str, operation: str, path: str, nth: int, name: str
) -> None:
    """Nothing is lost, no run is started twice, and nothing stays hidden."""
    (lie,) = (lie for lie in lies(api, operation) if lie.name == name)
    result = day(mount_base / tmp_path.name, api, Case(api, operation, path, nth, f"call {nth}", lie))
    assert result.fired
    assert result.violations == [], str(result)
