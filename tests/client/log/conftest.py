"""The path to this folder's own modules."""

import sys
from pathlib import Path

# pytest's importlib mode leaves this folder off the path
sys.path.append(str(Path(__file__).parent))
