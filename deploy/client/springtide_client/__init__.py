"""Follow a Springtide model from an inference process."""
