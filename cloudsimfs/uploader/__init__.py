"""Background callers of the namespace: uploads, deletes, and the conflicts an upload finds.

Called by the workers of `writeback`'s queue, with no lock held.
Locks: none of its own; those of the namespace in their order.
"""
