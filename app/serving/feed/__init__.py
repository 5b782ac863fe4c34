"""Routes for followers of the model: versions, the log, bases, snapshots."""
