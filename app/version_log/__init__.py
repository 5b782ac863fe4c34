"""The trainer's log: written, read, compacted, inspected, exported and verified."""
