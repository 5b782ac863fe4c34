"""Nets for several labels: what they share, and what each label has alone."""
