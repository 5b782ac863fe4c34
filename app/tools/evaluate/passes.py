"""One evaluation from the files to its result."""

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from springtide.app.config.load import Config, load_config
from springtide.app.tools.evaluate.evaluation import Evaluation
from springtide.app.tools.evaluate.file_source import FileSource
from springtide.app.tools.evaluate.report import EvaluationResult, ProgressReport
from springtide.app.tools.input_file import InputFile


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


def evaluate_files(
    files: Sequence[InputFile],
    config_path: Path | str | None,
    assignments: Sequence[Mapping[str, Any]] = (),
    *,
    limit: int | None = None,
    by: str | None = None,
    stopping: threading.Event | None = None,
    progress: ProgressReport | None = None,
    folder: str | None = None,
) -> EvaluationResult:
    """Learn the files in one pass. `stopping` ends it early; the result then says so. `folder`: for temporary files."""
    with temporary_config(config_path, assignments, parent=folder) as config:
        source = FileSource(config.source, config.schema, files, limit=limit, by=by)
        evaluation = Evaluation(config, source)
        progress = progress or ProgressReport()
        began = time.monotonic()

        def on_batch(evaluation: Evaluation) -> bool:
            progress.show(evaluation)
            return stopping is not None and stopping.is_set()

        try:
            evaluation.run(on_batch)
            seconds = time.monotonic() - began
            return EvaluationResult.of(evaluation, seconds, is_complete=source.finished)
        finally:
            progress.end()
            evaluation.close()
