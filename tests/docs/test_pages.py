"""Every page: links lead somewhere; the documentation's own pages keep to their width and length."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.documents import FENCE, ROOT, pages

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)
FILE_NAME = re.compile(r"`((?:app|deploy|embeddings|kernels|stream|tests)/[\w./-]+\.\w+)`")
MAX_COLUMNS, MAX_README_LINES = 120, 200
PAGES = pages()
DOCUMENTATION = [page for page in PAGES if page.parent in (ROOT, ROOT / "deploy", ROOT / "deploy" / "docs")]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page's text without its fenced code."""
    return FENCE.sub("", page.read_text())


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The file and the anchor ("" for none) that each of the page's relative links names."""
    for target in LINK.findall(CODE.sub("", prose(page))):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield (page.parent / path if path else page), anchor


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the page's headings; of equal ones the later are numbered."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    broken = [
        f"{target.resolve()}#{anchor}"
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target.resolve()))
    ]
    assert broken == []


@pytest.mark.parametrize("page", DOCUMENTATION, ids=name_of)
def test_lines_outside_tables_fit_the_width(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), start=1)
    assert [n for n, line in lines if len(line) > MAX_COLUMNS and not line.startswith("|")] == []


@pytest.mark.parametrize("page", DOCUMENTATION, ids=name_of)
def test_files_named_in_the_documentation_exist(page: Path) -> None:
    assert [name for name in FILE_NAME.findall(page.read_text()) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("folder", ["deploy/docs", "deploy/docs/decisions"])
def test_every_page_of_a_folder_is_listed_in_its_readme(folder: str) -> None:
    readme = ROOT / folder / "README.md"
    listed = {target.resolve() for target, _ in links(readme)}
    assert set((ROOT / folder).glob("*.md")) - listed == {readme}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES
