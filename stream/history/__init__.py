"""Files that are learned before the topic: their rows, the seam, and the source that reads one, then the other."""
