import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.bench.harness.peer_process import Peers
from tests.bench.harness.processes import PEER_SCRIPTS, ContenderProcess, save_array

SCRIPT = """
from serving import load, serve, timed
print("chatter of a library")
serve({"double": lambda path: (2 * load(path)).tolist(), "run": lambda: timed(lambda: None), "fail": lambda: 1 / 0})
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[ContenderProcess]:
    (tmp_path / "script.py").write_text(SCRIPT)
    folder = str(PEER_SCRIPTS)
    child = ContenderProcess("script", [sys.executable, str(tmp_path / "script.py")], {"PYTHONPATH": folder}, None)
    yield child
    child.close()


def test_a_child_answers_whatever_its_libraries_print(child: ContenderProcess, tmp_path: Path) -> None:
    assert child.call("double", path=save_array(tmp_path, "numbers", np.arange(3))) == [0, 2, 4]
    assert child.call("run")["seconds"] >= 0


def test_a_failure_of_the_child_comes_with_its_own_traceback(child: ContenderProcess) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        child.call("fail")
    assert child.call("run")["seconds"] >= 0


def test_a_peer_that_is_not_installed_is_named_as_missing(tmp_path: Path) -> None:
    with Peers({"TFRA": "tfra"}, venvs=tmp_path, threads=1) as peers:
        assert peers.versions == {"TFRA": "missing"}
        assert not peers.installed
        assert not peers.contenders(1.0, "run")
