"""The state of a mount, for people and for programs: `.cloudsimfs/status`, `status.json` and `pending`.

Threading: none of its own; each part is a snapshot that its owner takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cloudsimfs import __version__
from cloudsimfs.config import Config
from cloudsimfs.journal.fitting import set_aside
from cloudsimfs.service import BudgetState, Client
from cloudsimfs.text import count, mib, printable
from cloudsimfs.uploader.conflicts import Conflicts
from cloudsimfs.vfs.filesystem import FileSystem
from cloudsimfs.writeback.queue import Job

MOST_LINES = 10  # lines of one kind in the text


class Report:
    def __init__(
        self, config: Config, mountpoint: Path, client: Client, filesystem: FileSystem, conflicts: Conflicts
    ) -> None:
        self._config = config
        self._mountpoint = mountpoint
        self._client = client
        self._writeback = filesystem.writeback
        self._deletes = filesystem.writeback.deletes
        self._refusals = filesystem.writeback.refusals
        self._queue = filesystem.writeback.queue
        self._meter = filesystem.writeback.meter
        self._datacache = filesystem.datacache
        self._handles = filesystem.handles
        self._recovery = filesystem.recovery
        self._conflicts = conflicts

    def status(self) -> dict[str, object]:
        """The state as values for JSON: sizes in bytes, times in seconds since the epoch."""
        jobs = self._writeback.pending()
        used, limit = self._datacache.usage
        outage = self._client.outage
        return {
            "version": __version__,
            "pid": os.getpid(),
            "url": self._config.url,
            "offline": self._config.offline,
            "outage": None if outage is None else asdict(outage),
            "mountpoint": str(self._mountpoint),
            "pending": [_row(job) for job in jobs],
            "uploads": self._uploads(jobs),
            "last_error": self._last_error(),
            "conflicts": [asdict(conflict) for conflict in self._conflicts.found()],
            "undeleted": [{"path": path, "error": error} for path, error in self._deletes.given_up().items()],
            "recover": [draft.path for draft in self._recovery.drafts()],
            "set_aside": [str(journal) for journal in set_aside(self._config.cache_dir)],
            "cache": {"directory": str(self._config.cache_dir), "used": used, "limit": limit},
            "open_files": self._handles.count,
            "budget": asdict(self._client.budget.snapshot()),
        }

    def _uploads(self, jobs: list[Job]) -> dict[str, float | None]:
        """Bytes left and sent of all uploads, the rate, and the seconds that the rest will take (None: unknown)."""
        left = sum(max(0, job.size - job.sent) for job in jobs)
        rate = self._meter.rate()
        seconds = round(left / rate, 1) if rate else None
        return {"left": left, "rate": round(rate), "seconds": seconds, "sent": self._meter.total}

    def _last_error(self) -> dict[str, object] | None:
        last = self._queue.last_error
        return None if last is None else {"time": last[0], "text": last[1]}

    def status_text(self) -> str:
        """The same for people, and what they have to decide."""
        jobs = self._writeback.pending()
        lines = [
            *self._service_lines(jobs),
            *self._kept_lines(),
            *self._conflict_lines(),
            *[f"sending   /{job.path}: {_share(job)}" for job in jobs if job.running and job.sent][:MOST_LINES],
            *[f"waiting   /{job.path}: {job.error}" for job in jobs if job.error][:MOST_LINES],
        ]
        last = self._queue.last_error
        if last is not None and not any(job.error for job in jobs):
            lines.append(f"solved    {_hour(last[0])} {last[1]}")
        return "".join(f"{printable(line)}\n" for line in lines)

    def _service_lines(self, jobs: list[Job]) -> Iterator[str]:
        budget = self._client.budget.snapshot()
        used, limit = self._datacache.usage
        outage = self._client.outage
        yield f"service   {self._config.url}{' (offline: nothing is asked or sent)' if self._config.offline else ''}"
        if outage is not None:
            yield f"no answer since {_hour(outage.since)}: {outage.text}"
        yield f"pending   {_pending(len(jobs), self._uploads(jobs))}"
        yield f"cache     {used >> 20} of {limit >> 20} MiB in {self._config.cache_dir}"
        yield f"calls     {budget.used} used this hour, {_left(budget)}"
        if budget.waiting:
            yield f"waiting   {count(budget.waiting, 'call')}, for the hour to turn at {_hour(budget.resets_at)}"

    def _kept_lines(self) -> Iterator[str]:
        """What waits for `cloudsimfs recover`, the uploads that the service refuses, and the journals set aside."""
        refused = self._refusals.all()
        drafts = self._recovery.drafts()
        kept = [draft for draft in drafts if not any(reason.startswith(f"/{draft.path}: ") for reason in refused)]
        for draft in kept[:MOST_LINES]:
            reason = "was open for writing when the daemon died, or replaced by others"
            if draft.found:
                reason = "its record in the journal was lost, so it is not uploaded"
            yield f"kept      /{draft.path}: {reason}; see `cloudsimfs recover`"
        if len(kept) > MOST_LINES:
            yield f"kept      {len(kept) - MOST_LINES} more; see `cloudsimfs recover`"
        for journal in set_aside(self._config.cache_dir):
            yield f"journal   set aside, since it did not fit the files: {journal}; remove it when you like"
        for reason in refused[:MOST_LINES]:
            yield f"refused   {reason}; write it again, remove it, or see `cloudsimfs recover`"

    def _conflict_lines(self) -> Iterator[str]:
        """The deletes that were given up, and the conflicts."""
        for path, error in list(self._deletes.given_up().items())[:MOST_LINES]:
            yield f"undeleted /{path} is shown again, since the service does not delete it: {error}"
        for conflict in self._conflicts.found()[-MOST_LINES:]:
            yield f"conflict  /{conflict.path} was changed on the service too; yours is /{conflict.ours}"

    def pending_text(self) -> str:
        """A line for each upload and delete that is not on the service yet."""
        return "".join(
            printable(f"{job.kind} {job.sent} {job.size} /{job.path}{f'  ({job.error})' if job.error else ''}") + "\n"
            for job in self._writeback.pending()
        )


def _row(job: Job) -> dict[str, Any]:
    return {
        "kind": job.kind,
        "path": job.path,
        "size": job.size,
        "sent": job.sent,
        "attempts": job.attempts,
        "error": job.error,
    }


def _pending(jobs: int, uploads: dict[str, float | None]) -> str:
    text = count(jobs, "operation")
    if uploads["left"]:
        text += f", {mib(uploads['left'])} to send"
    if uploads["seconds"] is not None and uploads["left"]:
        text += f" at {mib(uploads['rate'] or 0)}/s: about {_duration(uploads['seconds'])}"
    return text


def _left(budget: BudgetState) -> str:
    if budget.remaining is None:
        return "no limit" if budget.limit_known else "limit unknown: the service has not named it yet"
    left = f"{budget.remaining} of {budget.limit or 'all'} left"
    return left + (f", and {budget.reserve} for launch, stop and sync" if budget.reserve else "")


def _share(job: Job) -> str:
    return f"{100 * job.sent // max(1, job.size)} % of {mib(job.size)}"


def _hour(moment: float) -> str:
    """A moment (seconds since the epoch) as the local time of day."""
    return time.strftime("%H:%M", time.localtime(moment))


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"
