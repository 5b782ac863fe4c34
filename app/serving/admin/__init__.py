"""Admin routes: commands to the trainer."""
