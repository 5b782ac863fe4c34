"""Raw records to columns: the JSON parser, the reference decoder for what it leaves, dead letters, erased ids."""
