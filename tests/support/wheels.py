"""Build a wheel of this checkout, and install the product's beside the packages of the present environment."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.processes import ROOT

CLIENT = ROOT / "deploy" / "client"


def build_wheel(project: Path, folder: Path, *, kernels: str = "none", dims: str = "") -> Path:
    """Build the wheel of a project into a folder, without a network where hatchling is installed.

    `kernels`: the levels of CPU that it has compiled kernels for, for rows of these dims.
    """
    isolation = (
        ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else ["--retries", "1", "--timeout", "10"]
    )
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", *isolation, "-w", str(folder), str(project)]
    environment = clean_environment() | {"SPRINGTIDE_KERNELS": kernels, "SPRINGTIDE_KERNEL_DIMS": dims}
    built = subprocess.run(command, capture_output=True, text=True, env=environment)
    if built.returncode and "hatchling" in built.stderr:
        pytest.skip(f"the wheel cannot be built: hatchling is neither installed nor to be had: {built.stderr[-300:]}")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_wheel(wheel: Path, folder: Path, *, lends_compiled: bool = True) -> Path:
    """Install the product's wheel into a new virtual environment; return its folder of commands.

    The other packages are the present environment's, as a .pth names its folder: such a folder's own .pth files, those
    of an editable installation, are not read. `lends_compiled`: what the checkout has compiled is used, since its
    sources are equal.
    """
    venv.create(folder, symlinks=True)
    commands = Path(sysconfig.get_path("scripts", vars={"base": str(folder)}))
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(commands / "python")]
    installing = [*pip, "install", "-q", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    done = subprocess.run(installing, capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 0, done.stderr
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    if lends_compiled:
        lend_compiled(ROOT / "deploy" / "package" / "springtide", site / "springtide")
        lend_compiled(CLIENT / "springtide_client", site / "springtide_client")
    return commands


def clean_environment() -> dict[str, str]:
    """Return the environment with no way to the checkout's packages but those of the installed wheel."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}


def lend_compiled(checkout: Path, installed: Path) -> None:
    """Copy Numba's cache, which knows a source by its size and time, to the copies of the sources."""
    for source in installed.rglob("*.py"):
        original = checkout / source.relative_to(installed)
        os.utime(source, ns=(original.stat().st_atime_ns, original.stat().st_mtime_ns))
        for compiled in (original.parent / "__pycache__").glob(f"{source.stem}.*.nb[ic]"):
            (source.parent / "__pycache__").mkdir(exist_ok=True)
            shutil.copy2(compiled, source.parent / "__pycache__")
