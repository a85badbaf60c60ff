"""What must outlive the daemon: closed states, drafts, tombstones, local attributes and launches, in SQLite.

Called by every package that changes local truth, in one transaction per step. `journal` has the crash order, `schema`
the tables; `readonly` looks into the journal of another mount.
Locks: `Journal.lock`, the last in every order.
"""
