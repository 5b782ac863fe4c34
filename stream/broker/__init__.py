"""The embedded broker: start and stop it, find it, and cap what its topics hold."""
