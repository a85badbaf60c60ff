"""Builds what `.simulations/` of one account is made of, for a mount or for a command that needs none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cloudsimfs.clock import Clock
from cloudsimfs.control.simulations import Simulations
from cloudsimfs.datacache.directory import LAUNCH_LOCK
from cloudsimfs.journal.journal import Journal
from cloudsimfs.runs import launch, runs
from cloudsimfs.runs.commands import RunCommands
from cloudsimfs.runs.images import Images
from cloudsimfs.runs.launch import Launcher
from cloudsimfs.runs.options import LaunchOptions
from cloudsimfs.runs.poller import Poller
from cloudsimfs.runs.runs import Runs
from cloudsimfs.runs.store import RunStore
from cloudsimfs.service import Client


def runs_of_account(
    client: Client,
    journal: Journal,
    storage: launch.Storage,
    watcher: runs.Watcher,
    *,
    directory: Path,
    ttl: float,
    bulk: bool,
    clock: Clock,
    changed: Callable[[list[str]], None],
) -> Simulations:
    """`directory` is the account's; `ttl` in seconds; `bulk`: v1's list may be asked for v2's logs."""
    store = RunStore(directory / "runs")
    found = Runs(client, store, watcher, ttl=ttl, bulk=bulk, clock=clock)
    lookups = LaunchOptions(client, store, clock=clock)
    return Simulations(
        found,
        RunCommands(client, found, watcher),
        lookups,
        Images(client, found, store, ttl=ttl, clock=clock),
        Launcher(client, found, lookups, storage, journal, lock_file=directory / LAUNCH_LOCK),
        Poller(found, client.budget, ttl=ttl, clock=clock),
        store,
        client.budget,
        changed=changed,
    )
