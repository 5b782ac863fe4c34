"""Everything that training needs to continue exactly, and its way into and out of the log."""
