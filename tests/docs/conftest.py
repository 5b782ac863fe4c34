"""Tests of this folder import their helper by name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
