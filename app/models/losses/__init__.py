"""The loss that is minimized for each label, and how labels are weighed against each other."""
