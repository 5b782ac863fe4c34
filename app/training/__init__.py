"""The trainer: learns from the stream and publishes versions."""
