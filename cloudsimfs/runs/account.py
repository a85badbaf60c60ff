"""All that is made for the runs of one account, for a mount or for a command that needs none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cloudsimfs.clock import Clock
from cloudsimfs.journal.journal import Journal
from cloudsimfs.runs.book import LaunchBook, take_from_journal
from cloudsimfs.runs.commands import RunCommands
from cloudsimfs.runs.images import Images
from cloudsimfs.runs.launch import Launcher, Storage
from cloudsimfs.runs.list import RunList, Watcher
from cloudsimfs.runs.logcache import LogCache
from cloudsimfs.runs.logs import RunLogs
from cloudsimfs.runs.options import LaunchOptions
from cloudsimfs.runs.poller import Poller
from cloudsimfs.runs.store import RunStore
from cloudsimfs.service import Budget, Client


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRuns:
    """What there is to look at runs, to command them and to launch one."""

    runs: RunList
    logs: RunLogs
    images: Images
    options: LaunchOptions
    commands: RunCommands
    launcher: Launcher
    poller: Poller
    budget: Budget

    def close(self) -> None:
        self.poller.close()
        self.runs.close()
        self.launcher.close()


def runs_of_account(
    client: Client,
    journal: Journal,
    storage: Storage,
    watcher: Watcher,
    *,
    directory: Path,
    launches: Path,
    ttl: float,
    bulk: bool,
    clock: Clock,
) -> AccountRuns:
    """`directory` is the account's cache, `launches` has its book; `ttl` in seconds; `bulk`: v1's list may be asked
    for v2's logs.
    """
    book = LaunchBook(launches)
    take_from_journal(journal, book)
    store = RunStore(directory / "runs")
    logs = LogCache(store)
    runs = RunList(client, store, logs, watcher, ttl=ttl, bulk=bulk, clock=clock)
    options = LaunchOptions(client, store, clock=clock)
    return AccountRuns(
        runs=runs,
        logs=RunLogs(runs, logs),
        images=Images(client, runs, store, ttl=ttl, clock=clock),
        options=options,
        commands=RunCommands(client, runs, watcher),
        launcher=Launcher(client, runs, options, storage, book, store, clock=clock),
        poller=Poller(runs, client.budget, ttl=ttl, clock=clock),
        budget=client.budget,
    )
