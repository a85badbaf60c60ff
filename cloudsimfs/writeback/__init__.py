"""What is pending: the queue of jobs, closed files that wait for their upload, names that wait for their delete.

The namespace adds jobs and calls them off; `uploader` runs them. Nothing here calls back into either.
Locks: `WorkQueue.lock` protects the queue and the tables of pending uploads and deletes; after `Inode.lock`.
"""
