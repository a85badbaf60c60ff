"""What is pending: the queue of jobs, closed files that wait for their upload, removed names that wait for a delete.

The namespace adds jobs and cancels them; `uploader` runs them. Nothing here knows either of the two.
Locks: `WorkQueue.lock` protects the queue and the tables of pending uploads and deletes; it comes after `Inode.lock`.
`ViewCache._calling` is held over one call. The locks of `Dependents`, `Fsyncer` and `Meter` are leaves.
"""
