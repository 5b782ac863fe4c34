"""Rollback to an older version, repair of a corrupt log, skipped samples."""
