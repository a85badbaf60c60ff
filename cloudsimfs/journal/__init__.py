"""What must outlive the daemon: closed states, drafts, tombstones, local attributes and launches, in SQLite.

Called by every package that changes local truth, in one transaction for each step. `journal` has the crash order,
`schema` the tables; `readonly` reads the journal of another mount.
Locks: `Journal.lock`, which is `Database._lock`, is the last of the order in docs/architecture.md, "Locks".
"""
