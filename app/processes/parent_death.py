"""Which process a supervised child dies with: its parent's id travels in an environment variable."""

import os

from springtide_client.system.parent_death import die_with_parent

PARENT_VARIABLE = "SPRINGTIDE_PARENT"


def child_environment() -> dict[str, str]:
    """Return the environment for a child that calls `die_with_supervisor`."""
    return dict(os.environ) | {PARENT_VARIABLE: str(os.getpid())}


def die_with_supervisor() -> None:
    """In a supervised child: be sent SIGTERM when the supervisor dies. In any other process: do nothing.

    The variable is removed, so that the child's own children do not inherit it.
    """
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is not None:
        die_with_parent(int(parent))
