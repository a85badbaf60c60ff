"""`.cloudsimfs/metrics`: what `status.json` says as numbers, in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Name, type, what it is. Bytes, seconds and times (Unix) as Prometheus has them; what is not known is left out.
METRICS = (
    ("pending_operations", "gauge", "Uploads and deletes that are not on the service yet."),
    ("pending_bytes", "gauge", "Bytes that are still to be uploaded."),
    ("failing_operations", "gauge", "Of the pending operations, those whose last try failed."),
    ("uploaded_bytes_total", "counter", "Bytes uploaded since the mount."),
    ("upload_bytes_per_second", "gauge", "The present rate of the uploads."),
    ("conflicts", "gauge", "Files that were changed on the service, too, and have got a name of their own."),
    ("undeleted", "gauge", "Names that the service does not delete, and that are shown again."),
    ("recoverable_drafts", "gauge", "Files that wait for `cloudsimfs recover`."),
    ("cache_used_bytes", "gauge", "The disk cache."),
    ("cache_limit_bytes", "gauge", "What the disk cache may use."),
    ("open_files", "gauge", "Open files."),
    ("api_calls_total", "counter", "API calls sent since the mount."),
    ("api_calls_used", "gauge", "API calls of the account in this hour."),
    ("api_calls_remaining", "gauge", "API calls left in this hour, without the reserve."),
    ("api_calls_limit", "gauge", "API calls that an hour has."),
    ("api_calls_waiting", "gauge", "API calls that wait for the hour to turn."),
    ("api_hour_ends_timestamp_seconds", "gauge", "When the hour turns."),
)


def prometheus(status: dict[str, Any]) -> str:
    """The text for what `Report.status` returns."""
    values = dict(_values(status))
    lines = []
    for name, kind, help_text in METRICS:
        value = values[name]
        if value is not None:
            lines += [f"# HELP cloudsimfs_{name} {help_text}", f"# TYPE cloudsimfs_{name} {kind}"]
            lines.append(f"cloudsimfs_{name} {value}")
    return "".join(f"{line}\n" for line in lines)


def _values(status: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    pending, uploads, cache, budget = (status[part] for part in ("pending", "uploads", "cache", "budget"))
    yield "pending_operations", len(pending)
    yield "pending_bytes", uploads["left"]
    yield "failing_operations", sum(job["error"] is not None for job in pending)
    yield "uploaded_bytes_total", uploads["sent"]
    yield "upload_bytes_per_second", uploads["rate"]
    yield "conflicts", len(status["conflicts"])
    yield "undeleted", len(status["undeleted"])
    yield "recoverable_drafts", len(status["recover"])
    yield "cache_used_bytes", cache["used"]
    yield "cache_limit_bytes", cache["limit"]
    yield "open_files", status["open_files"]
    yield "api_calls_total", budget["calls"]
    yield "api_calls_used", budget["used"]
    yield "api_calls_remaining", budget["remaining"]
    yield "api_calls_limit", budget["limit"]
    yield "api_calls_waiting", budget["waiting"]
    yield "api_hour_ends_timestamp_seconds", budget["resets_at"]
