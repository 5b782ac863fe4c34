"""What the actions of `springtide versions` do and print; `show` and `diff`, which print more, have their own files."""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from springtide.app.commands.command import Report, format_bytes, format_time
from springtide.app.commands.forget import submit_and_wait
from springtide.app.commands.versions.diff import diff
from springtide.app.commands.versions.show import show
from springtide.app.config.load import Config
from springtide.app.errors import UserError
from springtide.app.version_log.commands.pin import pin_version, unpin_version
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.verify.report import Finding, plural
from springtide.app.version_log.verify.verify import verify
from springtide_client.format.records import version_name
from springtide_client.log.directory import LogDirectory


def list_versions(config: Config, arguments: argparse.Namespace) -> Report:
    if arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: at least 1")
    index = LogIndex(LogDirectory(config.log.path))
    before = index.resolve(arguments.before) if arguments.before else None
    shown = [version for version in index.numbers if before is None or version < before]
    listed = [describe(index, version) for version in shown[-arguments.limit :]]
    return Report(listed, list_lines(config, index, listed))


def list_lines(config: Config, index: LogIndex, listed: list[dict[str, Any]]) -> Iterator[str]:
    """Write a table of versions, and below it what the log has besides."""
    yield f"{'version':>12}  {'created':19}  {'samples':>13}  {'rows':>9}  {'forgotten':>9}  {'bytes':>10}"
    for line in listed:
        rows = ["" if line[name] is None else f"{line[name]:,}" for name in ("rows", "forgotten")]
        size = "" if line["bytes"] is None else format_bytes(line["bytes"])
        marks = "  changed schema" if line["is_change"] else "  base" if line["is_base"] else ""
        marks += "".join(f"  {name}" for name in line["pins"])
        summary = f"{line['name']:>12}  {format_time(line['created_ms']):19}  {line['samples_trained']:>13,}"
        yield f"{summary}  {rows[0]:>9}  {rows[1]:>9}  {size:>10}{marks}".rstrip()
    bases = ", ".join(version_name(version) for version in index.bases) or "none"
    yield (
        f"{len(listed):,} of {plural(len(index.numbers), 'version')} in {config.log.path}, "
        f"{version_name(index.numbers[0])} to {version_name(index.numbers[-1])}; bases: {bases}"
    )
    if index.pins:
        yield "pins: " + ", ".join(f"{pin.name} {version_name(pin.version)}" for pin in index.pins)
    if index.unsealed_epoch:
        yield f"epoch {index.unsealed_epoch} is claimed but not started: a trainer is starting, or died while starting"


def describe(index: LogIndex, version: int) -> dict[str, Any]:
    """Return a version's line; what only its record has is None if the record is deleted."""
    entry = index.find(version)
    summary = entry.read_summary() if entry else None
    meta = summary.meta if summary else index.meta(version)
    return {
        "version": version,
        "name": version_name(version),
        "created_ms": meta.created_ms,
        "samples_trained": meta.samples_trained,
        "rows": summary.num_rows if summary else None,
        "forgotten": summary.num_forgotten if summary else None,
        "bytes": entry.num_bytes if entry else None,
        "file": entry.frame.path.name if entry else None,
        "is_base": version in index.bases,
        "is_change": bool(meta.change),
        "pins": [pin.name for pin in index.pins if pin.version == version],
    }


def export_version(config: Config, arguments: argparse.Namespace) -> Report:
    from springtide.app.version_log.export.export import ExportConfig, check_target, export, format_of

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
    num_bytes, version = path.stat().st_size, version_name(options.version)
    document = {
        "file": str(path),
        "version": number,
        "name": version,
        "format": format,
        "rows": num_rows,
        "bytes": num_bytes,
    }
    text = f"{path}: version {version} as {format}, {plural(num_rows, 'row')}, {format_bytes(num_bytes)}"
    return Report(document, [text])


def verify_log(config: Config, arguments: argparse.Namespace) -> Report:
    def on_finding(finding: Finding) -> None:
        if not arguments.json:
            print(f"{finding.level:<5}  {finding}", flush=True)  # at once: a log may take minutes

    directory = LogDirectory(config.log.path)
    report = verify(directory, deep=arguments.deep, keep_bases=config.log.keep_bases, on_finding=on_finding)
    if report.errors:
        return Report(report.all, [f"{plural(len(report.errors), 'error')} in {config.log.path}"], exit_code=1)
    hint = "" if arguments.deep else " (--deep also replays each base)"
    return Report(report.all, [f"no errors in {config.log.path}{hint}"])


def pin(config: Config, arguments: argparse.Namespace) -> Report:
    pin = pin_version(config.log.path, arguments.version, arguments.name)
    place = f"{pin.name} pins version {version_name(pin.version)}"
    return Report(pin, [f"{place}: it counts into [log] log_bytes until it is unpinned"])


def unpin(config: Config, arguments: argparse.Namespace) -> Report:
    pin = unpin_version(config.log.path, arguments.name)
    return Report(pin, [f"{pin.name} is removed: version {version_name(pin.version)} is kept no longer than others"])


def rollback(config: Config, arguments: argparse.Namespace) -> Report:
    index = LogIndex(LogDirectory(config.log.path))
    version = index.resolve(arguments.version)
    index.base_before(version)  # a version without a base is refused here, before a command is submitted
    if (begin := index.begin_of(version)) != (present := index.begin_of(index.numbers[-1])):
        print(
            f"version {version_name(version)} has the schema that began with {version_name(begin)}, the log goes on "
            f"with that of {version_name(present)}: only what the present schema can carry comes back; to restore all "
            "of it, start once with the configuration from then, and roll back again",
            file=sys.stderr,
        )
    body = {"version": version, "skip": arguments.skip}
    return submit_and_wait(config, "rollback", body, wait_seconds=arguments.wait)[1]


RUN: dict[str, Callable[[Config, argparse.Namespace], Report]] = {
    "list": list_versions,
    "show": show,
    "diff": diff,
    "export": export_version,
    "verify": verify_log,
    "pin": pin,
    "unpin": unpin,
    "rollback": rollback,
}
