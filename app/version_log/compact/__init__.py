"""Compaction: merging a base and the versions after it into the next base, and deleting what that replaces."""
