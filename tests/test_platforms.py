"""What pyproject.toml says of platforms, and kernels that compile for other processors."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LINUX_X86 = {"sys_platform": "linux", "platform_machine": "x86_64"}
LINUX_ARM = {"sys_platform": "linux", "platform_machine": "aarch64"}
MAC_ARM = {"sys_platform": "darwin", "platform_machine": "arm64"}


@pytest.mark.parametrize(("platform", "missing"), [(LINUX_X86, set()), (MAC_ARM, set()), (LINUX_ARM, {"rocksdb-py"})])
def test_every_dependency_is_required_where_it_has_a_wheel(platform: dict[str, str], missing: set[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [Requirement(text) for text in [*project["dependencies"], *project["optional-dependencies"]["local"]]]
    assert {each.name for each in required if each.marker and not each.marker.evaluate(platform)} == missing
