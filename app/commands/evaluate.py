"""`springtide evaluate FILE...`: how well the settings predict the samples of files, each before it is learned."""

import argparse
from pathlib import Path

HELP = "learn files (CSV, TSV, JSONL, Parquet) in one pass, without a broker, and say how well they are predicted"


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
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from app.processes.signals import stop_on_signals
    from app.processes.tuning import tune_process

    tune_process()
    from app.commands.formatting import print_json
    from app.config.assignments import parse_assignment
    from app.errors import UserError
    from app.tools.evaluate.passes import evaluate_files
    from app.tools.replay.input_file import InputFile

    if arguments.limit is not None and arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: at least 1")
    files = [InputFile(path) for path in arguments.files]
    assignments = [parse_assignment(text) for text in arguments.set]
    stopping = stop_on_signals()
    result = evaluate_files(
        files, arguments.config, assignments, limit=arguments.limit, by=arguments.by, stopping=stopping
    )
    if arguments.json:
        print_json(result.document())
    else:
        print("\n".join(result.lines()))
    return 0 if result.is_complete else 130
