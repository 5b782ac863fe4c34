"""Commands to the trainer: submitted, executed, reported, and what erasures and rollbacks write."""
