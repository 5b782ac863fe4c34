"""What followers of the model read: versions, the log, bases, snapshots."""
