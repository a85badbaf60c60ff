"""Reading the logs of runs at the least cost in calls.

v1's list carries the logs of all runs. v2's does not: a log costs a call of its own, unless v1's list may be asked
for it (`RunList.lists_logs`).

Threading: none of its own; calls are single-flight, made by the list.
"""

from __future__ import annotations

from cloudsimfs.runs.list import RunList
from cloudsimfs.runs.logcache import LogCache


class RunLogs:
    def __init__(self, runs: RunList, cache: LogCache) -> None:
        self._runs = runs
        self._cache = cache

    def cached(self, run_id: int) -> bytes:
        """The log as it was last fetched; makes no call."""
        run = self._runs.cached_run(run_id)
        log = None if run is None else self._cache.get(run)
        return b"" if log is None else log.data

    def read(self, run_id: int) -> bytes:
        """The log, at most the runs' TTL old; older if the service cannot be asked now. Raises NotFound."""
        run = self._runs.cached_run(run_id) or self._runs.get(run_id)
        log = self._cache.get(run)
        if not run.active and (log is None or not log.whole):
            self._runs.let_land(run_id)  # a call from before the end lacks the last lines
            log = self._cache.get(run)
        if log is None or (not log.whole and not (run.active and self._runs.is_fresh(log.fetched_at))):
            known = log is not None
            if self._runs.is_v1:
                self._runs.renew(known=known)
            elif self._wants_other_logs(run_id):
                self._runs.renew_with_logs()
            if self._cache.get(run) is log:  # a list without it
                self._runs.renew_run(run_id, known=known)
            log = self._cache.get(run)
        if log is None:
            return b""
        self._cache.keep(run_id, log)
        return log.data

    def _wants_other_logs(self, run_id: int) -> bool:
        """Whether logs of other active runs were read of late: then one call for all of them is cheaper."""
        others = [at for other, at in self._cache.of_active().items() if other != run_id]
        return any(map(self._runs.is_fresh, others))
