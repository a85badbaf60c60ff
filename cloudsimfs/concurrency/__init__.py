"""What threads share: one call for many who ask, waits that end early, pauses between attempts, tables of handles.

Called by every package that waits or repeats; knows no file and no service. It imports the clock and the errors.
Locks: each object has one of its own, a leaf.
"""
