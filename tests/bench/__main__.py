"""Run a benchmark of this folder: `python -m tests.bench NAME ...`; `table.train` is the `main` of table/train.py."""

import sys
from importlib import import_module

if __name__ == "__main__":
    sys.argv[0] = sys.argv.pop(1)  # as the benchmark's parser names it
    room, _, file = sys.argv[0].partition(".")
    sys.exit(import_module(f"tests.bench.{room}.{file or room}").main())
