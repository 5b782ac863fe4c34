"""Searches for settings that predict a log best: many on a short prefix, the best third on a longer one, and so on."""
