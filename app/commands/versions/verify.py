"""`springtide versions verify`: reads the whole log and says what is wrong."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.config.load import Config
    from app.version_log.verify.report import Finding

HELP = "read the whole log, say what was covered and what is wrong; exit code 1 where something is"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deep", action="store_true", help="also replay each base from the one before it")
    parser.add_argument("--json", action="store_true", help="for other programs")


def run(config: "Config", arguments: argparse.Namespace) -> int:
    from springtide_client.log.directory import LogDirectory

    from app.commands.formatting import print_json
    from app.version_log.verify.report import plural
    from app.version_log.verify.verify import verify

    directory = LogDirectory(config.log.path)
    if arguments.json:
        findings = verify(directory, deep=arguments.deep)
        print_json([vars(finding) for finding in findings.all])
        return 1 if findings.errors else 0
    findings = verify(directory, deep=arguments.deep, tell=print_finding)
    if findings.errors:
        verb = "is" if len(findings.errors) == 1 else "are"
        print(f"{plural(len(findings.errors), 'thing')} {verb} wrong in {config.log.path}")
        return 1
    hint = "" if arguments.deep else " (--deep also replays each base)"
    print(f"all is well in {config.log.path}{hint}")
    return 0


def print_finding(finding: "Finding") -> None:
    """One line."""
    print(f"{finding.level:<5}  {finding}", flush=True)
