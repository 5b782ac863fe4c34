"""`springtide versions export`: write a version as one file."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from springtide.app.commands.formatting import VERSION_NAMES

if TYPE_CHECKING:
    from springtide.app.config.load import Config

HELP = "write a version as one file: the model snapshot, or its rows for other tools"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write")
    parser.add_argument(
        "--format",
        choices=("safetensors", "arrow", "parquet", "torch"),
        help="safetensors: the whole model as the server's snapshot; arrow, parquet: rows; torch: plain tensors "
        "(default: by the file name's suffix, .safetensors .arrow .parquet .pt)",
    )
    parser.add_argument("--version", default="latest", help=f"{VERSION_NAMES} (default: latest)")
    parser.add_argument("--feature", metavar="NAME", help="only the rows of this feature")
    parser.add_argument("--rows", choices=("all", "none"), default="all", help="none: only the dense net")
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run(config: "Config", arguments: argparse.Namespace) -> int:
    from springtide.app.commands.formatting import format_bytes
    from springtide.app.errors import UserError
    from springtide.app.version_log.export.export import ExportConfig, check_target, export, format_of
    from springtide.app.version_log.read.index import LogIndex
    from springtide.app.version_log.verify.report import plural
    from springtide_client.format.records import version_name
    from springtide_client.log.directory import LogDirectory

    path: Path = arguments.out
    format = arguments.format or format_of(path)
    check_target(path, force=arguments.force)
    index = LogIndex(LogDirectory(config.log.path))
    number = index.resolve(arguments.version)
    schema = index.base_before(number).manifest.decode_schema()
    if arguments.feature is not None and arguments.feature not in schema.features:
        raise UserError(f"--feature {arguments.feature}: there is no such feature, only {', '.join(schema.features)}")
    options = ExportConfig(
        format=format,
        version=number,
        feature=None if arguments.feature is None else schema.number(arguments.feature),
        with_rows=arguments.rows == "all",
    )
    num_rows = export(index, options, path, force=arguments.force)
    version = version_name(options.version)
    print(f"{path}: version {version} as {format}, {plural(num_rows, 'row')}, {format_bytes(path.stat().st_size)}")
    return 0
