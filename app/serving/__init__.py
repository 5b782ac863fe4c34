"""The server process: one view of the newest version, answered over HTTP."""
