"""From Kafka's bytes to batches; see README.md in this folder."""
