"""The trainer as a rollback needs it."""

from typing import Protocol

from springtide.app.training.ranks.loop_decision import LoopDecision
from springtide.app.training.session import TrainingSession


class RollbackOwner(Protocol):
    """The trainer's loop, stopped between two batches."""

    @property
    def session(self) -> TrainingSession:
        """The session loaded from the log; `reload` replaces it."""
        ...

    def vote(self) -> LoopDecision:
        """Tell the other ranks how things stand here, and hear from them. All ranks."""
        ...

    def publish(self) -> bool:
        """Publish a version; False if the gate or undelivered dead letters prevent it."""
        ...

    def execute_commands(self) -> None:
        """Execute all that wait. Call it right after a checkpoint."""
        ...

    def wait_until_durable(self) -> bool:
        """Wait until everything appended is durable; False if a stop was requested meanwhile."""
        ...

    def reload(self) -> None:
        """Continue from the end of the log."""
        ...
