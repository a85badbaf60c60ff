"""What is pending: the queue of jobs, closed files that wait for their upload, names that wait for their delete.

Called by the namespace, which adds and calls off; the jobs themselves are done by `uploader`.
Locks: `WorkQueue.lock` protects the queue and the tables of pending uploads and deletes; after `Inode.lock`.
"""
