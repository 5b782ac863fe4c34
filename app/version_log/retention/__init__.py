"""What a log keeps: pinned versions, and bases by rule."""
