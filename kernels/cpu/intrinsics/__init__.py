"""intrinsics."""
