"""One step of learning."""
