"""`springtide evaluate FILE...`: how well the settings predict the samples of files, each before it is learned."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from springtide.app.commands.command import Report, Subcommand, add_json

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from springtide.stream.history.input_file import InputFile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--limit", type=int, metavar="N", help="read at most N rows")
    parser.add_argument("--by", metavar="FIELD", help="scores by the values of a field, the 20 most frequent ones")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="change a setting, such as train.batch_size=64 (may be repeated)",
    )
    parser.add_argument(
        "--compare", nargs=2, metavar="CONFIG", help="evaluate two configurations on the same rows, side by side"
    )
    parser.add_argument("--search", action="store_true", help="search for better settings with Optuna (extra `search`)")
    parser.add_argument(
        "--budget", metavar="TIME|RUNS", help="of --search: a time (10m) or a number of settings (default: 27 runs)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of --search: which settings are proposed (default: 0)")
    parser.add_argument(
        "--storage", metavar="URL", help="of --search: Optuna's, such as sqlite:///s.db, to go on or search together"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="of --search: write the winner as a configuration")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Report:
    from springtide.app.processes.signals import stop_on_signals
    from springtide.app.processes.tuning import tune_process

    tune_process()
    from springtide.app.config.document import parse_assignment
    from springtide.app.errors import UserError
    from springtide.app.tools.evaluate.comparison import comparison_document, comparison_lines, require_same_labels
    from springtide.app.tools.evaluate.report import ProgressReport, evaluate_files
    from springtide.stream.history.input_file import InputFile

    if arguments.limit is not None and arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: at least 1")
    files = [InputFile(path) for path in arguments.files]
    assignments = [parse_assignment(text) for text in arguments.set]
    stopping = stop_on_signals()
    if arguments.search:
        return _search(arguments, files, assignments, stopping)
    if name := next((n for n in ("budget", "seed", "storage", "write") if getattr(arguments, n) is not None), None):
        raise UserError(f"--{name} goes with --search")
    configs = [arguments.config]
    if arguments.compare is not None:
        if arguments.config is not None:
            raise UserError("--compare names both configurations: leave out --config")
        configs = arguments.compare
    results = []
    for config in configs:
        progress = ProgressReport(title=f"{config}: " if len(configs) > 1 else "")
        results.append(
            evaluate_files(
                files,
                config,
                assignments,
                limit=arguments.limit,
                by=arguments.by,
                stopping=stopping,
                progress=progress,
            )
        )
        if stopping.is_set():
            break
    exit_code = 0 if all(result.is_complete for result in results) else 130
    if len(results) == 2:
        require_same_labels(results)
        return Report(comparison_document(*results), comparison_lines(*results), exit_code)
    return Report(results[0].document(), results[0].lines(), exit_code)


def _search(
    arguments: argparse.Namespace,
    files: "Sequence[InputFile]",
    assignments: "Sequence[dict[str, Any]]",
    stopping: "threading.Event",
) -> Report:
    from springtide.app.errors import UserError
    from springtide.app.tools.evaluate.search import Budget, Search

    for name in ("compare", "by"):
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name} does not go with --search: evaluate the winner afterwards")
    path = arguments.write
    if path is not None and (path.exists() or not path.parent.is_dir()):
        why = (
            "the file exists: name another one, or remove it" if path.exists() else f"there is no folder {path.parent}"
        )
        raise UserError(f"--write {path}: {why}")
    found = Search(
        files,
        arguments.config,
        assignments,
        limit=arguments.limit,
        budget=None if arguments.budget is None else Budget.parse(arguments.budget),
        seed=arguments.seed or 0,
        storage=arguments.storage,
        stopping=stopping,
    ).run()
    if path is not None:
        path.write_text(found.toml(arguments.config, assignments), encoding="utf-8")
    return Report(found.document(), found.lines())


EVALUATE = Subcommand(
    "learn files (CSV, TSV, JSONL, Parquet) in one pass, without a broker, and say how well they are predicted",
    add_arguments,
    run,
)
