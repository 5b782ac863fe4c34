"""Commands in the documentation exist and take the options shown."""

import re
from pathlib import Path

import pytest

from springtide.app.cli import build_parser
from springtide.app.errors import UserError
from tests.docs.documents import ROOT, pages, shell_commands

PROMPTS = ("$", "sudo")


def commands_of(page: Path, program: str) -> list[list[str]]:
    found = [[word for word in words if word not in PROMPTS] for words in shell_commands(page)]
    return [words for words in found if words and words[0] == program]


def test_springtide_commands_are_accepted_by_the_parser() -> None:
    parser = build_parser()
    for page in pages():
        for words in commands_of(page, "springtide"):
            arguments = [word for word in words[1:] if word != "&"]
            if arguments[-1:] != ["--help"]:
                try:
                    parser.parse_args(arguments)
                except UserError as error:
                    pytest.fail(f"{page.relative_to(ROOT)}: {' '.join(words)}: {error}")


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in pages():
        for words in commands_of(page, "make"):
            named = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
            assert set(named) <= targets, f"{page.relative_to(ROOT)}: make {' '.join(named)}"


def test_the_readme_shows_commands() -> None:
    assert len(commands_of(ROOT / "README.md", "springtide")) >= 3
    assert len(commands_of(ROOT / "README.md", "make")) >= 1
