"""What is pending: the queue of jobs, closed files that wait for their upload, removed names that wait for a delete.

The namespace adds jobs and calls them off; `uploader` runs them. Nothing here calls back into either.
Locks: `WorkQueue.lock` protects the queue and the tables of pending uploads and deletes; after `Inode.lock`.
"""
