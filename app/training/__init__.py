"""The learner and the loop around it; see README.md in this folder."""
