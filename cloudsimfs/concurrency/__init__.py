"""What threads share: single flight, waits that end early, pauses between attempts, tables of handles.

Called by every package that waits or repeats. It knows no file and no service; it imports the clock and the errors.
Locks: `HandleTable._lock` and `Holds._lock` are leaves. `SingleFlight._lock` is held while `landed` runs, which may
take a lock of its caller; no call is made under it.
"""
