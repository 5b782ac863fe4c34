"""From the stream to batches."""
