"""What the world may do to a table."""


class EmbeddingsError(Exception):
    """Anything the world did to a table."""


class SpillError(EmbeddingsError):
    """The spill cannot be opened, read or written."""


class OwnershipError(EmbeddingsError):
    """The rows belong to one object in one process, and this asks for them from elsewhere."""
