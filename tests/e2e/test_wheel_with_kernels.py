"""A wheel with compiled kernels, beside the user's own `app`: nothing is compiled until the first prediction.

One level of CPU and one width of rows: `make package` builds all of them.
"""

import json
import platform
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from springtide.kernels.kernel_store import level_features, missing_features
from tests.e2e.clicks import make_clicks
from tests.e2e.test_installed_wheel import UserFolder
from tests.support.processes import ROOT
from tests.support.waiting import wait_until
from tests.support.wheels import build_wheel, clean_environment, install_wheel

DIM = 16
LEVEL = next((name for name, features in reversed(level_features().items()) if not missing_features(features)), None)
# imported at the start of every process of the environment: it notes what Numba compiles
COUNTER = """
import os
from numba.core import event

class Note(event.Listener):
    def on_start(self, happened):
        with open({path!r}, "a") as file:
            file.write(str(happened.data["dispatcher"]) + "\\n")

    def on_end(self, happened):
        pass

event.register("numba:compile", Note())
"""

pytestmark = pytest.mark.skipif(LEVEL is None, reason=f"no level of CPU is declared for {platform.machine()}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"), kernels=str(LEVEL), dims=str(DIM))


@pytest.fixture(scope="module")
def compilations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that has a line for each compilation in the environment."""
    path = tmp_path_factory.mktemp("compilations") / "compiled"
    path.touch()
    return path


@pytest.fixture(scope="module")
def commands(wheel: Path, compilations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    commands = install_wheel(wheel, tmp_path_factory.mktemp("environment"), lends_compiled=False)
    (site,) = commands.parent.glob("lib/python*/site-packages")
    (site / "count_compilations.py").write_text(COUNTER.format(path=str(compilations)))
    (site / "zz_count.pth").write_text("import count_compilations\n")
    return commands


@pytest.fixture
def user(tmp_path: Path, commands: Path) -> Iterator[UserFolder]:
    made = UserFolder(tmp_path, commands)
    made.configure({"table": {"dim": DIM, "device_bytes": "32MiB"}})
    yield made
    made.close()


def run_python(commands: Path, code: str) -> str:
    done = subprocess.run(
        [str(commands / "python"), "-P", "-c", code], capture_output=True, text=True, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_wheel_says_what_its_kernels_are_for(wheel: Path) -> None:
    major, minor = sys.version_info[:2]
    assert wheel.name.endswith(f"-cp{major}{minor}-none-manylinux_2_17_{platform.machine()}.whl")
    with zipfile.ZipFile(wheel) as files:
        assert f"springtide/kernels/stores/{LEVEL}.zip" in files.namelist()
        (summary,) = (name for name in files.namelist() if name.endswith("extra_metadata/kernels.json"))
        assert json.loads(files.read(summary))["levels"] == [LEVEL]
        assert not [name for name in files.namelist() if name.endswith((".nbi", ".nbc"))]


def test_nothing_is_compiled_until_the_first_prediction(user: UserFolder, compilations: Path) -> None:
    """The trainer has learned, published, and compacted; the server has looked up and predicted."""
    clicks = make_clicks(2_000)
    item = json.loads(clicks[0])["item_id"]
    user.start("run")
    wait_until(user.broker_address, "the broker's address")
    user.produce(clicks)
    wait_until(lambda: user.get(f"/v1/embeddings/item_id/{item}"), "the item's row")
    code, answer = user.request("POST", "/v1/predict", {"instances": [json.loads(clicks[0])]}, token=None)
    assert code == 200, answer
    assert compilations.read_text().split("\n") == [""]


def test_edited_sources_are_compiled_and_say_so(commands: Path, compilations: Path) -> None:
    hashing = (
        "import numpy as np\nfrom springtide.kernels.cpu.hashing import hash_keys as f\nf(*[np.zeros(1, 'u2')] * 2)"
    )
    choice = "from springtide.kernels.kernel_store import installed_store; print(installed_store().text)"
    assert run_python(commands, choice).endswith(f"compiled for {LEVEL} came with the wheel")
    (source,) = commands.parent.glob("lib/python*/site-packages/springtide/kernels/cpu/hashing.py")
    text = source.read_text()
    source.write_text(f"{text}\n# edited\n")
    try:
        assert "the sources were changed" in run_python(commands, choice)
        run_python(commands, hashing)
        assert "hash_keys" in compilations.read_text()
    finally:
        source.write_text(text)
