"""Child processes, signals, priorities and log lines of Springtide's own processes."""
