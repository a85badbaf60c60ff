"""`.cloudsimfs/metrics`: the numbers of `status.json`, in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def prometheus(status: dict[str, Any]) -> str:
    """The text for the values of `Report.status`; unknown values are left out."""
    lines = []
    for name, meaning, value in _samples(status):
        if value is not None:
            kind = "counter" if name.endswith("_total") else "gauge"  # as Prometheus' naming has it
            lines += [f"# HELP cloudsimfs_{name} {meaning}", f"# TYPE cloudsimfs_{name} {kind}"]
            lines.append(f"cloudsimfs_{name} {value}")
    return "".join(f"{line}\n" for line in lines)


def _samples(status: dict[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    """Name, meaning and value: sizes in bytes, times in seconds since the epoch."""
    pending, uploads, cache, budget = (status[part] for part in ("pending", "uploads", "cache", "budget"))
    failing = sum(bool(job["error"]) for job in pending)
    yield "pending_operations", "Uploads and deletes that are not on the service yet.", len(pending)
    yield "pending_bytes", "Bytes that are still to be uploaded.", uploads["left"]
    yield "failing_operations", "Of the pending operations, those whose last try failed.", failing
    yield "uploaded_bytes_total", "Bytes uploaded since the mount.", uploads["sent"]
    yield "upload_bytes_per_second", "The present rate of the uploads.", uploads["rate"]
    yield (
        "conflicts",
        "Files that others have changed, too, and that were stored under a name of their own.",
        len(status["conflicts"]),
    )
    yield "undeleted", "Names that the service does not delete, and that are shown again.", len(status["undeleted"])
    yield "recoverable_drafts", "Files that wait for `cloudsimfs recover`.", len(status["recover"])
    yield "cache_used_bytes", "The disk cache.", cache["used"]
    yield "cache_limit_bytes", "What the disk cache may use.", cache["limit"]
    yield "open_files", "Open files.", status["open_files"]
    yield "service_silent", "1 while the service answers no call.", int(status["outage"] is not None)
    yield "api_calls_total", "API calls sent since the mount.", budget["calls"]
    yield "api_calls_used", "API calls of the account in this hour.", budget["used"]
    yield "api_calls_remaining", "API calls left in this hour, without the reserve.", budget["remaining"]
    yield "api_calls_limit", "The limit of API calls in an hour.", budget["limit"]
    yield (
        "api_limit_known",
        "1 once the limit is known. If api_calls_limit is then missing, there is no limit.",
        int(budget["limit_known"]),
    )
    yield "api_calls_waiting", "API calls that wait for the hour to turn.", budget["waiting"]
    yield "api_hour_ends_timestamp_seconds", "When the hour turns.", budget["resets_at"]
