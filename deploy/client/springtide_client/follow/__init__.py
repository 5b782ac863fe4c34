"""Keep a view at the newest version of a log: states, listeners, limits on memory."""
