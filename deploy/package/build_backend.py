"""hatchling, which needs what the program needs in order to compile the kernels of a wheel, and of nothing else."""

import os
import tomllib
from pathlib import Path
from typing import Any

from hatchling.build import *  # noqa: F403
from hatchling.build import get_requires_for_build_wheel as requires_of_hatchling

from hatch_build import levels_to_build


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """What to install where the wheel is built: with kernels, all that they are compiled by running."""
    needed = requires_of_hatchling(config_settings)
    if levels_to_build():
        project = tomllib.loads((Path(os.getcwd()) / "pyproject.toml").read_text())["project"]
        needed += project["dependencies"]
    return needed
