"""`springtide versions list`: the newest versions, which of them have a base, and what is pinned."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from springtide.app.config.load import Config
    from springtide.app.version_log.read.index import LogIndex

HELP = "list the newest versions, oldest first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="how many (default: 20)")
    parser.add_argument("--before", metavar="VERSION", help="only versions before this one")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(config: "Config", arguments: argparse.Namespace) -> int:
    from springtide.app.commands.formatting import format_bytes, format_time, print_json
    from springtide.app.errors import UserError
    from springtide.app.version_log.read.index import LogIndex
    from springtide.app.version_log.verify.report import plural
    from springtide_client.format.records import version_name
    from springtide_client.log.directory import LogDirectory

    if arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: at least 1")
    index = LogIndex(LogDirectory(config.log.path))
    before = index.resolve(arguments.before) if arguments.before else None
    shown = [number for number in index.numbers if before is None or number < before]
    lines = [describe(index, number) for number in shown[-arguments.limit :]]
    if arguments.json:
        print_json(lines)
        return 0
    print(f"{'version':>12}  {'created':19}  {'samples':>13}  {'rows':>9}  {'forgotten':>9}  {'bytes':>10}")
    for line in lines:
        rows = ["" if line[name] is None else f"{line[name]:,}" for name in ("rows", "forgotten")]
        size = "" if line["bytes"] is None else format_bytes(line["bytes"])
        marks = "  changed schema" if line["is_change"] else "  base" if line["is_base"] else ""
        marks += "".join(f"  {name}" for name in line["pins"])
        print(
            f"{line['name']:>12}  {format_time(line['created_ms']):19}  {line['samples_trained']:>13,}  "
            f"{rows[0]:>9}  {rows[1]:>9}  {size:>10}{marks}".rstrip()
        )
    bases = ", ".join(version_name(number) for number in index.bases) or "none"
    print(
        f"{len(lines):,} of {plural(len(index.numbers), 'version')} in {config.log.path}, "
        f"{version_name(index.numbers[0])} to {version_name(index.numbers[-1])}; bases: {bases}"
    )
    if index.pins:
        pins = ", ".join(f"{pin.name} {version_name(pin.version)}" for pin in index.pins)
        print(f"pins: {pins}")
    if index.unsealed_epoch:
        print(f"epoch {index.unsealed_epoch} is claimed but not started: a trainer is starting, or died while starting")
    return 0


def describe(index: "LogIndex", number: int) -> dict[str, Any]:
    """Return a version's line; what only its record has is None if the record is deleted."""
    from springtide_client.format.records import version_name

    entry = index.find(number)
    head = entry.read_head() if entry else None
    meta = head.meta if head else index.meta(number)
    return {
        "version": number,
        "name": version_name(number),
        "created_ms": meta.created_ms,
        "samples_trained": meta.samples_trained,
        "rows": head.num_rows if head else None,
        "forgotten": head.num_forgotten if head else None,
        "bytes": entry.num_bytes if entry else None,
        "file": entry.frame.path.name if entry else None,
        "is_base": number in index.bases,
        "is_change": bool(meta.change),
        "pins": [pin.name for pin in index.pins if pin.version == number],
    }
