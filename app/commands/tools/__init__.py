"""Subcommands around the service: demo, init, check, evaluate, replay, simulate, bench."""
