"""The trainer's reports about itself."""
