"""The settings of an evaluation: a configuration file with changes, over a folder that is deleted afterwards."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from springtide.app.config.load import Config, load_config


@contextmanager
def temporary_config(
    path: Path | str | None, assignments: Sequence[Mapping[str, Any]] = (), *, parent: str | None = None
) -> Iterator[Config]:
    """Return the configuration with log and spill in a temporary folder, so that an existing log changes nothing.

    The folder is in `parent`, by default that of all temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="springtide-evaluate-", dir=parent) as folder:
        paths = {"log": {"path": f"{folder}/log"}, "table": {"disk_path": f"{folder}/spill"}}
        yield load_config(path, paths, assignments)
