"""The log as it is written: epochs, records, bases, orders, and what a trainer resumes from."""
