"""Puts compiled kernels into the wheel that `python -m build` makes: a store for each level of this kind of CPU.

What pip builds, to install it or to link to it, gets none, as they take minutes: such a wheel is for any machine and
Python, and its kernels compile where they are used. SPRINGTIDE_KERNELS says otherwise: levels such as
"x86-64-v3,x86-64-v2", "all", or "none". SPRINGTIDE_KERNEL_DIMS names the dimensions of rows, such as "16 128".
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LEVELS = {  # the best first, as in kernels/kernel_store.py
    "x86_64": ("x86-64-v4", "x86-64-v3", "x86-64-v2"),
    "aarch64": ("generic",),
}
PACKAGES = ("app", "stream", "embeddings", "kernels")


def levels_to_build() -> list[str]:
    """The levels that the environment names, or all of this machine; none where there are none."""
    if sys.platform != "linux":
        return []
    wanted = os.environ.get("SPRINGTIDE_KERNELS", "none" if "PIP_BUILD_TRACKER" in os.environ else "all")
    return {"all": list(LEVELS.get(platform.machine(), ())), "none": []}.get(wanted, wanted.split(","))


class CustomBuildHook(BuildHookInterface[Any]):
    """Runs the sources that are packed, and packs what they compile."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is written."""
        levels = levels_to_build()
        if version == "editable" or not levels:
            return
        self._folder = tempfile.TemporaryDirectory()
        stores = Path(self._folder.name) / "stores"
        dims = os.environ.get("SPRINGTIDE_KERNEL_DIMS", "").split()
        command = [sys.executable, "-P", "-m", "springtide.app.tools.compile_kernels", "--stores", str(stores)]
        command += ["--levels", *levels, *(["--dims", *dims] if dims else [])]
        environment = os.environ | {"PYTHONPATH": str(self._import_folder()), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run(command, env=environment, check=True)
        for path in stores.glob("*.zip"):
            build_data["force_include"][str(path)] = f"springtide/kernels/stores/{path.name}"
        summary = Path(self._folder.name) / "kernels.json"
        summary.write_text(json.dumps({"levels": levels, "python": sys.implementation.cache_tag}))
        build_data["extra_metadata"][str(summary)] = "kernels.json"
        # object code and pickles of one Python and one kind of CPU; no shared library, so any glibc that Numba has
        build_data["pure_python"] = False
        major, minor = sys.version_info[:2]
        build_data["tag"] = f"cp{major}{minor}-none-manylinux_2_17_{platform.machine()}"

    def _import_folder(self) -> Path:
        """A folder in which the packages are imported by the names that they have in the wheel."""
        root, folder = Path(self.root), Path(self._folder.name) / "packages"
        (folder / "springtide").mkdir(parents=True)
        for name in PACKAGES:
            (folder / "springtide" / name).symlink_to(root / name)
        for path in (root / "deploy" / "package" / "springtide").glob("*.py"):
            (folder / "springtide" / path.name).symlink_to(path)
        (folder / "springtide_client").symlink_to(root / "deploy" / "client" / "springtide_client")
        return folder

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """After the wheel is written."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
