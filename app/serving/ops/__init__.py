"""Operation routes: status, probes, metrics, events."""
