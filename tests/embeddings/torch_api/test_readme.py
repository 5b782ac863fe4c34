"""The README's examples of DynamicEmbedding, run as they stand there."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[3] / "README.md"


def test_the_readmes_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = README.read_text()
    section = text[text.index("## In a torch model of your own") :]
    section = section[: section.index("\n## ")]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    status, emb = names["status"], names["emb"]
    assert status.tolist() == [0, 1]  # type: ignore[attr-defined]
    assert len(emb) == 1000  # type: ignore[arg-type]
    assert (tmp_path / "clicks.pt").stat().st_size > 10_000
    names["model"].users.close()  # type: ignore[attr-defined]
