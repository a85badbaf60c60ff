"""What must outlive the daemon: closed states, drafts, tombstones, local attributes and launches, in SQLite.

Called by whoever changes local truth, in one transaction a step; `journal` holds the schema and the crash order.
Locks: `Journal.lock`, the last in every order.
"""
