"""The errors of this package."""


class EmbeddingsError(Exception):
    """The base of all errors of this package that are not caused by wrong arguments."""


class SpillError(EmbeddingsError):
    """The spill cannot be opened, read or written. A later call may succeed."""


class OtherSpillError(SpillError):
    """The spill of another rank failed, which has a SpillError that says how. All may repeat the call."""


class OwnershipError(EmbeddingsError):
    """The rows belong to one object in one process, and were requested from another."""


class ShardError(EmbeddingsError):
    """Another rank of the process group failed in a call that all ranks make together."""
