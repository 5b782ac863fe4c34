"""Part of Springtide; see README.md in this folder."""
