"""The methods that are timed exist in trainer and server."""

import subprocess
import sys

import pytest

from tests.support.processes import our_environment

CODE = """
from tests.bench.freshness import traced_command
traced_command.run_command = lambda *words: None
traced_command.{kind}("springtide.toml")
"""


@pytest.mark.parametrize("kind", ["train", "serve"])
def test_every_timed_method_exists(kind: str) -> None:
    command = [sys.executable, "-P", "-c", CODE.format(kind=kind)]
    done = subprocess.run(command, env=our_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
