"""compact."""
