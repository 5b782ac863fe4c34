"""What the trainer reports about itself."""
