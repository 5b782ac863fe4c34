"""The house rules that no linter knows."""

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OURS = ("app", "stream", "embeddings", "kernels", "springtide_client")


def test_nobody_else_owns_our_import_names() -> None:
    owners = importlib.metadata.packages_distributions()
    for name in OURS:
        assert set(owners.get(name, [])) <= {"springtide", "springtide-client"}, f"{name} belongs to {owners[name]}"


def test_importing_our_packages_loads_no_heavy_library() -> None:
    heavy = ("torch", "kafka", "fastapi", "rocksdbpy", "cupy", "numba")
    code = (
        f"import sys, {', '.join(OURS)}\n"
        f"loaded = [name for name in {heavy!r} if name in sys.modules]\n"
        "sys.exit(f'imported: {loaded}' if loaded else 0)"
    )
    path = f"{ROOT}:{ROOT / 'deploy' / 'client'}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path, "PATH": ""}
    )
    assert done.returncode == 0, done.stderr


def test_the_root_holds_only_the_fixed_folders() -> None:
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    folders = {name.split("/")[0] for name in tracked if "/" in name}
    assert folders - {".ci", ".github"} == {"app", "stream", "embeddings", "kernels", "tests", "deploy"}


def test_benchmarks_import_each_other_by_their_full_names() -> None:
    """So that they run as files and as modules; what `peers` holds runs in interpreters of its own."""
    folder = ROOT / "tests" / "bench"
    files = sorted(folder.glob("*.py"))
    bare = [
        f"{path.name}:{node.lineno} {name}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported_names(node)
        if name.partition(".")[0] in {file.stem for file in files}
    ]
    assert not bare


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
