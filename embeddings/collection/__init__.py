"""Several tables as one, for features whose rows differ in width or optimizer."""
