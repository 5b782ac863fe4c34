"""The README's quick start as a newcomer follows it: the demo, then each printed command against it."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.documents import ROOT, blocks, shell_commands

README = ROOT / "README.md"
ADDRESS = re.compile(r"(127\.0\.0\.1|localhost):8000")


@pytest.fixture(scope="module")
def demo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running demo, learning slowly; its address."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "springtide", "demo", "--rate", "300"],
        cwd=tmp_path_factory.mktemp("quick_start"),
        env=dict(os.environ)
        | {"PYTHONPATH": f"{ROOT / 'deploy' / 'package'}:{ROOT / 'deploy' / 'client'}", "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert demo.stderr is not None
        yield next(match[1] for line in demo.stderr if (match := re.search(r"dashboard: (http://\S+)", line)))
    finally:
        demo.terminate()
        demo.communicate(timeout=60)


def curl_commands() -> list[list[str]]:
    return [words for words in shell_commands(README) if words[0] == "curl"]


def test_there_are_curl_commands() -> None:
    assert len(curl_commands()) >= 3


@pytest.mark.parametrize("words", curl_commands(), ids=shlex.join)
def test_curl_commands_answer_with_json(words: list[str], demo_url: str) -> None:
    address = demo_url.removeprefix("http://").rstrip("/")
    command = [ADDRESS.sub(address, word) for word in words]
    done = subprocess.run([*command, "-s", "-f"], capture_output=True, text=True, timeout=60)
    is_row = "/v1/embeddings/" in shlex.join(words)
    if done.returncode == 22 and is_row:
        return  # 404: this user has not clicked yet in so short a demo
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)


def test_the_hot_model_example_runs(demo_url: str) -> None:
    [example] = [text for text in blocks(README, "python") if "HotModel" in text]
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(ADDRESS.sub(demo_url.removeprefix("http://").rstrip("/"), example), "README.md", "exec"), names)
    model = names["model"]
    try:
        [prediction] = model.predict([{"user_id": 7, "segment": "s3", "category": 12}])
        assert 0.0 < prediction["click"] < 1.0
        assert model.version > 0
    finally:
        model.close()


def test_the_folders_of_the_map_exist() -> None:
    text = README.read_text()
    links = re.findall(r"^\| \[([^\]]+)\]\(", text[text.index("## Map of the repository") :], re.MULTILINE)
    assert len(links) >= 10
    assert not [link for link in links if not (Path(ROOT) / link).is_dir()]
