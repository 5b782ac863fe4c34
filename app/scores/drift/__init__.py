"""Drift of features, scores and label rate between two windows of a stream."""
