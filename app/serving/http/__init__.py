"""HTTP itself: middleware, authorization, limits, errors, responses."""
