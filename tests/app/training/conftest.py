"""Lets the tests of this folder import its own modules; a log with a broker where it is asked for."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from trainer_room import room, trainer

__all__ = ["room", "trainer"]
