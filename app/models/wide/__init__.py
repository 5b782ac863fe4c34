"""The wide part beside a net."""
