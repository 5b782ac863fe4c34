"""Start this checkout's commands and modules as processes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IMPORT_PATHS = [str(ROOT / "deploy" / "package"), str(ROOT / "deploy" / "client"), str(ROOT)]
IMPORT_PATH = os.pathsep.join(IMPORT_PATHS)  # a PYTHONPATH


def our_environment(**changes: str) -> dict[str, str]:
    """Return the environment in which this checkout's packages can be imported, with one OpenMP thread."""
    return dict(os.environ) | {"PYTHONPATH": IMPORT_PATH, "OMP_NUM_THREADS": "1"} | changes


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this checkout, in `our_environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def start_springtide(*arguments: str, folder: Path, **options: Any) -> "subprocess.Popen[str]":
    """Start `springtide ARGUMENTS` in a folder; `options` are those of Popen, `environment` is added to ours."""
    environment = our_environment(**options.pop("environment", {}))
    return subprocess.Popen(
        [sys.executable, "-m", "springtide", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        text=True,
        **options,
    )
