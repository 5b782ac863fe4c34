"""The server's processes: workers, their connections, restarts and shutdown."""
