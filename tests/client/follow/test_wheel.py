"""The wheel alone is enough, in a service whose own package is called `app`."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

CLIENT = Path(__file__).parents[3] / "deploy" / "client"
SERVICE = """
import json, sys
import app
from springtide_client import HotModel

with HotModel(sys.argv[1]) as model:
    rows, status = model.lookup("user_id", [1, 2])
    answers = model.predict([{"user_id": 1}])
names = ("app", "springtide_client")
strange = {"stream", "embeddings", "kernels", "numba", "rocksdbpy", "cupy", "kafka", "fastapi"}
print(json.dumps({
    "answers": answers, "status": status.tolist(), "version": model.version,
    "files": {name: sys.modules[name].__file__ for name in names},
    "ours": sorted(strange & set(sys.modules)),
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built and unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    isolation = (
        ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else ["--retries", "1", "--timeout", "10"]
    )
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", *isolation, "-w", str(folder), str(CLIENT)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "hatchling" in built.stderr:
        pytest.skip(f"the wheel cannot be built: hatchling is neither installed nor to be had: {built.stderr[-300:]}")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        assert "springtide_client/py.typed" in files.namelist()
        files.extractall(folder / "installed")
    return folder / "installed"


def test_the_wheel_works_beside_a_package_called_app(installed: Path, make_log, tmp_path: Path) -> None:
    log = make_log()
    log.append({(0, 1): (np.ones(log.dim, np.float32), 1, 1)})
    service = tmp_path / "service"
    (service / "app").mkdir(parents=True)
    (service / "app" / "__init__.py").write_text("")
    (service / "main.py").write_text(SERVICE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "main.py", str(log.path)],
        cwd=service,
        env=environment | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["files"]["app"].startswith(str(service))
    assert said["files"]["springtide_client"].startswith(str(installed))
    assert said["ours"] == []
    assert said["status"] == [0, 1]
    assert said["version"] == log.number
    assert set(said["answers"][0]) == {"click", "order"}
