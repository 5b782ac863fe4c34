"""`springtide versions verify`: read the whole log and report what is wrong."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from springtide.app.config.load import Config
    from springtide.app.version_log.verify.report import Finding

HELP = "read the whole log and report what was checked and what is wrong; exit code 1 if anything is"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deep", action="store_true", help="also replay each base from the one before it")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(config: "Config", arguments: argparse.Namespace) -> int:
    from springtide.app.commands.formatting import print_json
    from springtide.app.version_log.verify.report import plural
    from springtide.app.version_log.verify.verify import verify
    from springtide_client.log.directory import LogDirectory

    directory = LogDirectory(config.log.path)
    if arguments.json:
        report = verify(directory, deep=arguments.deep, keep_bases=config.log.keep_bases)
        print_json([vars(finding) for finding in report.all])
        return 1 if report.errors else 0
    report = verify(directory, deep=arguments.deep, keep_bases=config.log.keep_bases, on_finding=print_finding)
    if report.errors:
        print(f"{plural(len(report.errors), 'error')} in {config.log.path}")
        return 1
    hint = "" if arguments.deep else " (--deep also replays each base)"
    print(f"no errors in {config.log.path}{hint}")
    return 0


def print_finding(finding: "Finding") -> None:
    """Print one line."""
    print(f"{finding.level:<5}  {finding}", flush=True)
