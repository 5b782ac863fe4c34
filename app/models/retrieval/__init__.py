"""Two towers: user and item vectors, whose dot product finds the items for a user."""
