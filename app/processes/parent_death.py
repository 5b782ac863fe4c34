"""A child that ends when the process that started it does. Knows nothing of what the child is for."""

import ctypes
import os
import signal
import sys

VARIABLE = "SPRINGTIDE_PARENT"
PR_SET_PDEATHSIG = 1


def child_environment() -> dict[str, str]:
    """What a child's environment must hold so that die_with_parent works there."""
    return dict(os.environ) | {VARIABLE: str(os.getpid())}


def die_with_parent() -> None:
    """In a child: ask the kernel for a SIGTERM at the parent's end; nothing in a process that nobody supervises.

    Only the child itself is meant: the variable is taken away, so that its own children do not find it.
    """
    parent = os.environ.pop(VARIABLE, None)
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # the parent may have ended before the kernel was asked
    if os.getppid() != int(parent):
        sys.exit(1)
