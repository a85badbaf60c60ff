"""Background callers of the namespace: uploads, deletes, and the conflicts an upload finds.

Called by the workers of `writeback`'s queue, with no lock held.
Locks: `Conflicts._lock` and `Deleter._lock` are leaves. Those of the namespace are taken in their order.
"""
