"""`springtide bench NAME`: a benchmark of the checkout."""

import argparse
import difflib
import os
import subprocess
import sys
from pathlib import Path

HELP = "run a benchmark of this checkout: NAME such as train.e2e; without NAME, list them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="passed on: --quick, --out PATH")


def run(arguments: argparse.Namespace) -> int:
    from springtide.app.errors import UserError

    root = Path(__file__).resolve().parents[3]
    folder = root / "tests" / "bench"
    if not folder.is_dir():
        raise UserError("bench needs a checkout of Springtide: this installation has no tests/bench")
    names = benchmarks(folder)
    if arguments.name is None:
        print("\n".join(names))
        return 0
    if arguments.name not in names:
        near = difflib.get_close_matches(arguments.name, names, n=1)
        raise UserError(
            f"no benchmark {arguments.name!r}: "
            + (f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}")
        )
    paths = [
        *(str(root / folder) for folder in ("deploy/package", "deploy/client", "")),
        os.environ.get("PYTHONPATH", ""),
    ]
    return subprocess.run(
        [sys.executable, "-P", "-m", names[arguments.name], *arguments.rest],
        env=dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        check=False,
    ).returncode


def benchmarks(folder: Path) -> dict[str, str]:
    """Return the module of each benchmark by its name: table/train.py is table.train, restart/restart.py is restart.

    A benchmark's docstring begins with its name; the other modules of a room support it.
    """
    found = {}
    for path in sorted(folder.glob("*/*.py")):
        room, file = path.parent.name, path.stem
        name = room if file == room else f"{room}.{file}"
        if path.read_text(encoding="utf-8").startswith(f'"""{name}: '):
            found[name] = f"tests.bench.{room}.{file}"
    return found
