"""The log over HTTP: a client of a server's routes, bases cached on disk, records from one open response."""
