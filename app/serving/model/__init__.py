"""The served model: the replica that follows the log, its views, and what is known of versions and the trainer."""
