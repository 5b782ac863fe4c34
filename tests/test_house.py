"""The house rules that no linter checks: names, folders, READMEs, links."""

import ast
import importlib.metadata
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support.processes import IMPORT_PATHS, ROOT

FOLDERS = ("app", "stream", "embeddings", "kernels", "deploy/package/springtide", "deploy/client/springtide_client")
PACKAGES = ("springtide", "springtide_client")


@cache
def tracked(suffix: str = "") -> list[Path]:
    """Return the tracked files whose name ends so, relative to the root."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.splitlines() if name.endswith(suffix) and (ROOT / name).exists()]


PACKAGE_PREFIXES = tuple(f"{folder}/" for folder in FOLDERS)


def modules() -> list[Path]:
    """Return the modules of both packages, without `__init__.py`."""
    return [path for path in tracked(".py") if str(path).startswith(PACKAGE_PREFIXES) and path.name != "__init__.py"]


def test_our_import_names_belong_to_no_other_distribution() -> None:
    owners = importlib.metadata.packages_distributions()
    for name in PACKAGES:
        assert set(owners.get(name, [])) <= {"springtide", "springtide-client"}, f"{name} belongs to {owners[name]}"


def test_importing_a_package_loads_no_heavy_library() -> None:
    heavy = ("torch", "kafka", "fastapi", "rocksdbpy", "cupy", "numba")
    code = (
        f"import sys, {', '.join(PACKAGES)}\n"
        f"loaded = [name for name in {heavy!r} if name in sys.modules]\n"
        "sys.exit(f'imported: {loaded}' if loaded else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(IMPORT_PATHS), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr


# folders


def test_the_root_holds_only_the_fixed_folders() -> None:
    folders = {path.parts[0] for path in tracked() if len(path.parts) > 1}
    assert folders - {".ci", ".github"} == {"app", "stream", "embeddings", "kernels", "tests", "deploy"}


def test_tests_mirror_the_folders_of_the_packages() -> None:
    """`tests/app/serving/http` tests `app/serving/http`; `tests/client` is the client's."""
    missing = set()
    for path in tracked(".py"):
        if path.parts[0] != "tests" or len(path.parts) < 3 or path.parts[1] not in (*FOLDERS, "client"):
            continue
        folder = Path(*path.parts[1:-1])
        if folder.parts[0] == "client":
            folder = Path("deploy/client/springtide_client", *folder.parts[1:])
        if not (ROOT / folder).is_dir():
            missing.add(str(path.parent))
    assert not missing


def test_every_module_has_a_test_at_its_mirrored_path_or_a_row_that_names_its_test() -> None:
    """A row of tests/README.md that names a module with a mirrored test, or one that is gone, is refused too."""
    rows = re.findall(r"^\| `([^`]+\.py)` \| `([^`]+)`", (ROOT / "tests" / "README.md").read_text(), re.MULTILINE)
    assert not [test for _, test in rows if not (ROOT / "tests" / test).is_file()]
    named = [name for pattern, _ in rows for name in expanded(pattern)]
    client = "deploy/client/springtide_client"
    unmirrored = []
    for path in modules():
        folder = Path("client") / path.relative_to(client) if path.is_relative_to(client) else path
        mirrored = ROOT / "tests" / folder.with_name(f"test_{path.name}")
        if not path.is_relative_to("deploy/package") and not mirrored.is_file():
            unmirrored.append(str(path))
    assert sorted(named) == sorted(unmirrored)


def expanded(pattern: str) -> list[str]:
    """Return the paths that a path with `{a,b}` stands for."""
    before, brace, rest = pattern.partition("{")
    names, _, after = rest.partition("}")
    return [f"{before}{name}{after}" for name in names.split(",")] if brace else [pattern]


def test_no_module_has_a_name_that_says_nothing() -> None:
    names = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert not [str(path) for path in tracked(".py") if path.stem in names]


def test_no_two_classes_of_the_packages_share_a_name() -> None:
    """Except those that the CPU backend and the CUDA backend implement each."""
    owners: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                backend = "kernels/cpu" if path.is_relative_to("kernels/cpu") else "other"
                owners.setdefault(f"{node.name} ({backend})", []).append(str(path))
    shared = {name: paths for name, paths in owners.items() if len(paths) > 1}
    names = [name.split()[0] for name in owners]
    in_both = {name for name in names if names.count(name) > 1}
    assert not shared
    assert in_both <= {"IndexOps", "SketchOps", "StoreOps", "StoreArrays"}


def test_benchmarks_import_each_other_by_their_full_names() -> None:
    """So that `python -m` finds them; what `peers` holds runs in interpreters of its own."""
    files = [path for path in tracked(".py") if path.parts[:2] == ("tests", "bench") and path.parts[2] != "peers"]
    local = {path.stem for path in files} | {path.parts[2] for path in files}
    bare = [
        f"{path}:{node.lineno} {name}"
        for path in files
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        for name in imported_names(node)
        if name.partition(".")[0] in local - set(sys.stdlib_module_names)
    ]
    assert not bare


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


# READMEs


def test_a_readmes_table_names_the_modules_and_folders_beside_it() -> None:
    """By file or folder name, or in words: `fast_path.py` or "fast path"."""
    missing = []
    for readme in [path for path in tracked("README.md") if str(path).startswith(PACKAGE_PREFIXES)]:
        rows = [line for line in (ROOT / readme).read_text().splitlines() if line.startswith("|")]
        table = "\n".join(rows).replace("_", " ").lower()
        beside = {path.relative_to(readme.parent).parts[0] for path in modules() if path.is_relative_to(readme.parent)}
        missing += [
            f"{name} in {readme}"
            for name in sorted(beside)
            if Path(name).stem.strip("_").replace("_", " ") not in table
        ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("path", tracked(".md"), ids=str)
def test_every_link_of_a_document_resolves(path: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code((ROOT / path).read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = unquote(target).partition("#")
        linked = (ROOT / path).parent / file if file else ROOT / path
        if not linked.exists() or (anchor and linked.suffix == ".md" and anchor not in anchors(linked)):
            broken.append(target)
    assert not broken


def anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub makes of a document's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?)\s*$", without_code(document.read_text(), keep_inline=True), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while (unique := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(unique)
    return found


def without_code(text: str, *, keep_inline: bool = False) -> str:
    """Return Markdown without its code blocks and, by default, inline code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return text if keep_inline else re.sub(r"`[^`\n]*`", "", text)


def test_the_newcomers_map_names_existing_files() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("## Where would you change") :]
    files = re.findall(r"^\| .* \| `([^`]+)` \|$", table, re.MULTILINE)
    assert len(files) >= 40
    assert not [name for name in files if not (ROOT / name).is_file()]
