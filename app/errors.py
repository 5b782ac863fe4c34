"""What may go wrong by the user's hand. What the world does is springtide_client.errors.SpringtideError."""


class UserError(Exception):
    """A mistake in the command or its configuration; the text is one line and says how to mend it. Exit code 2."""
