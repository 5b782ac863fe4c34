"""The Markdown files of the repository: fenced code blocks and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def pages() -> list[Path]:
    """Every page that people read: the root's, the folders' READMEs, deploy/docs."""
    folders = ("app", "stream", "embeddings", "kernels", "deploy", "tests")
    found = [*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))]
    return sorted(page for page in found if ".venv" not in page.parts)


def blocks(page: Path, language: str) -> list[str]:
    """The page's fenced blocks of one language; "" for blocks without one."""
    return [body for found, body in FENCE.findall(page.read_text()) if found == language]


def shell_commands(page: Path) -> Iterator[list[str]]:
    """The words of each command in the page's blocks without a language; comments and continued lines are joined."""
    for body in blocks(page, ""):
        for line in body.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(line, comments=True)
            except ValueError:
                continue  # a diagram or a program's output
            if words:
                yield words
