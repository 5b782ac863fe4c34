"""POST /v1/retrieve: the best items for a user, by two towers."""
