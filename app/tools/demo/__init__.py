"""What `springtide demo` shows; see README.md in app."""
