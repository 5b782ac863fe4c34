"""What happens to decoded columns on their way to the trainer: merge, queue, watermark, freshness, dead letters."""
