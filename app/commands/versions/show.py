"""`springtide versions show`: one version, or the history of one row."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import msgspec

from springtide.app.commands.command import Report, format_bytes, format_number, format_time
from springtide.app.config.load import Config
from springtide.app.errors import UserError
from springtide.app.version_log.inspection.crosses import Cross, find_cross, live_pairs, wide_parameters
from springtide.app.version_log.inspection.history import RowHistory, row_history, table_sizes
from springtide.app.version_log.inspection.id_files import FileReference, files_containing
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import VersionImage
from springtide.app.version_log.verify.report import plural
from springtide_client.format.records import version_name
from springtide_client.keys import encode_id
from springtide_client.log.directory import LogDirectory

PAIRS = 8  # of fields, by gain


def show(config: Config, arguments: argparse.Namespace) -> Report:
    if arguments.key and arguments.version:
        raise UserError("show takes a version or --key, not both: a row's history names every version")
    if arguments.key and arguments.cross:
        raise UserError("show takes --key or --cross, not both")
    if arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: at least 1")
    index = LogIndex(LogDirectory(config.log.path))
    if arguments.key:
        return show_key(config, index, arguments)
    if arguments.cross:
        return show_cross(index, index.resolve(arguments.version or "latest"), arguments.cross)
    return show_version(index, index.resolve(arguments.version or "latest"))


def show_version(index: LogIndex, version: int) -> Report:
    """Report a version's meta and the shapes of its tensors, from its record or, if that is deleted, from its base."""
    entry = index.find(version)
    summary = entry.read_summary() if entry else None
    document = {
        "version": version,
        "name": version_name(version),
        "parent": f"{entry.header.parent:016x}" if entry else None,
        "checksum": f"{index.head(version).checksum:016x}",
        "is_base": version in index.bases,
        "pins": [pin.name for pin in index.pins if pin.version == version],
        "is_restorable": index.is_restorable(version),
        "file": entry.frame.path.name if entry else None,
        "offset": entry.frame.offset if entry else None,
        "bytes": entry.num_bytes if entry else None,
        **msgspec.to_builtins(summary.meta if summary else index.meta(version)),
        "tensors": dict(summary.shapes) if summary else {},
        **contents_of(index, version),
    }
    return Report(document, version_lines(document))


def contents_of(index: LogIndex, version: int) -> dict[str, Any]:
    """Return the tables of a version, with the rows that its base has, and the pairs of fields whose crosses it learns.

    Empty for a version that cannot be rebuilt any more.
    """
    if not index.is_restorable(version):
        return {"tables": [], "crosses": []}
    image = VersionImage(index, version)
    parameters = wide_parameters(image)
    pairs = [] if parameters is None else live_pairs(image.schema, parameters)
    return {
        "tables": [vars(table) for table in table_sizes(image)],
        "crosses": [{"fields": list(pair.fields), "gain": pair.gain} for pair in pairs],
    }


def version_lines(document: dict[str, Any]) -> Iterator[str]:
    """Write the most important of it for people; the JSON has everything."""
    is_base = ", a base" if document["is_base"] else ""
    pins = f", pinned as {', '.join(document['pins'])}" if document["pins"] else ""
    gone = "" if document["is_restorable"] else ", can no longer be rebuilt"
    yield f"version {document['name']} (number {document['version']}{is_base}{pins}{gone})"
    if document["file"]:
        yield f"  record    {format_bytes(document['bytes'])} in {document['file']} at {document['offset']:,}"
    else:
        yield ("  record    " + ("none: it is a base" if document["change"] else "deleted: shown from its base"))
    yield f"  checksum  {document['checksum']}, parent {document['parent'] or 'unknown'}"
    yield f"  created   {format_time(document['created_ms'])}"
    yield (
        f"  complete  up to {format_time(document['complete_until_ms'])}, "
        f"event clock at {format_time(document['event_clock_ms'])}"
    )
    yield f"  learned   {document['samples_trained']:,} samples in {document['step']:,} steps"
    for partition, position in document["positions"].items():
        yield f"  position  {partition} at offset {position['offset']:,}"
    for name, letters in document["dead_letters"].items():
        yield f"  dead      {letters:,} letters: {name}"
    for task, values in score_lines(document["scores"]):
        yield f"  scores    {task}: {values}"
    shapes = document["tensors"]
    for group, what in (("rows", "rows written"), ("forgotten", "keys deleted"), ("texts", "id strings added")):
        for name, shape in shapes.items():
            if name.endswith(f"{group}.id"):
                table = name.rpartition("/")[0]
                yield (f"  {group:<9} {shape[0]:,} {what}" + (f" in table {table}" if table else ""))
    for table in document["tables"]:
        states = f" and {table['state_width']} of state" if table["state_width"] else ""
        features = f" of {', '.join(table['features'])}" if table["features"] else ""
        size = f"{table['rows']:,} rows{features} in its base, {format_bytes(table['bytes'])}"
        yield f"  table     {table['name'] or 'main'}: rows of {table['dim']} numbers{states}; {size}"
    if pairs := document["crosses"]:
        shown = ", ".join(f"{' x '.join(pair['fields'])} ({format_number(pair['gain'])})" for pair in pairs[:PAIRS])
        more = f" and {len(pairs) - PAIRS} more" if len(pairs) > PAIRS else ""
        yield f"  crosses   {plural(len(pairs), 'pair')} of fields, by gain: {shown}{more}"
    num_dense = sum(name.startswith("dense.") for name in shapes)
    if num_dense:
        yield f"  dense     {num_dense} parameters and buffers"
    if change := document["change"]:
        yield f"  changed   {', '.join(change['changed'])}; the version before is {version_name(change['from'])}"
        for group in ("kept", "begun", "dropped"):
            for line in change[group]:
                yield f"  {group:<9} {line}"
    for command in document["executed_commands"]:
        yield f"  command   {command.get('id')}: {command.get('kind')}"
    if document["durable"]:
        yield f"  durable   up to {version_name(document['durable'])} when it was written"


def score_lines(scores: dict[str, Any]) -> list[tuple[str, str]]:
    """Return one line per window: its name and its figures."""
    lines = []
    for name, values in scores.items():
        if name == "tasks":
            for task, windows in values.items():
                lines += [(f"{task}, {window}", text) for window, text in score_lines(windows)]
        elif isinstance(values, dict):
            lines.append((name, ", ".join(f"{key} {format_number(value)}" for key, value in values.items())))
    return lines


def show_key(config: Config, index: LogIndex, arguments: argparse.Namespace) -> Report:
    """Report the history of one row, which files contain it, and until when."""
    feature, equals, text = arguments.key.partition("=")
    if not equals:
        raise UserError(f"--key {arguments.key}: write FEATURE=ID, such as user_id=123")
    schema = index.manifest.decode_schema()
    if feature not in schema.features:
        raise UserError(f"--key {arguments.key}: no feature {feature!r}, only {', '.join(schema.features)}")
    number, (row_id, string) = schema.number(feature), encode_id(text)
    history = row_history(index, number, row_id, limit=arguments.limit)
    history.string = history.string or string
    references = files_containing(config.log, number, row_id)
    document = history_document(config, arguments.key, history, references)
    return Report(document, history_lines(config, arguments.key, history, references))


def history_lines(config: Config, key: str, history: RowHistory, references: list[FileReference]) -> Iterator[str]:
    """Write a line per event, then the files that contain the row."""
    name, _, shown = key.partition("=")
    hashed = f" (id {history.id})" if shown != str(history.id) else ""
    string = f", the string {history.string!r}" if history.string not in (None, shown) else ""
    yield f"{name}={shown}{hashed}{string}, since version {version_name(history.first)}"
    left_out = history.num_events - len(history.events)
    if left_out:
        yield f"({plural(left_out, 'earlier event')} not shown: --limit {history.num_events} shows all)"
    if history.events:
        yield (
            f"{'version':>12}  {'created':19}  {'event':9}  {'count':>9}  {'last seen':19}  {'norm':>8}  {'move':>8}"
        )
    for event in history.events:
        count = "" if event.count is None else f"{event.count:,}"
        seen = "" if event.last_seen_ms is None else format_time(event.last_seen_ms)
        norm, move = ("" if value is None else format_number(value) for value in (event.norm, event.move))
        when = f"{version_name(event.version):>12}  {format_time(event.created_ms):19}"
        yield (f"{when}  {event.kind:9}  {count:>9}  {seen:19}  {norm:>8}  {move:>8}".rstrip())
    if not history.events:
        yield "no version since then wrote it: the id was never learned, or its row was deleted before"
    elif not history.is_alive:
        yield f"the row was deleted: {history.events[-1].kind} in version {version_name(history.events[-1].version)}"
    bases = ", ".join(version_name(version) for version in history.bases)
    word = "no base" if not bases else ("base " if len(history.bases) == 1 else "bases ") + bases
    yield f"it is in {word}" if references else "no file of the log holds it"
    if references:
        oldest = references[0]
        others = f", of {len(references)}" if len(references) > 1 else ""
        yield f"the oldest file that holds it{others}: {oldest.file}"
        yield f"that file is deleted {oldest.removal_condition(config.log)}"


def history_document(config: Config, key: str, history: RowHistory, references: list[FileReference]) -> dict[str, Any]:
    """Return the history as JSON has it."""
    return {
        "key": key,
        "feature": history.feature,
        "id": history.id,
        "id_string": history.string,
        "from": version_name(history.first),
        "is_alive": history.is_alive,
        "num_events": history.num_events,
        "events": [{"name": version_name(event.version), **vars(event)} for event in history.events],
        "bases": [version_name(version) for version in history.bases],
        "files": [
            {
                "file": reference.file,
                "removal_condition": reference.removal_condition(config.log),
                "expected_ms": reference.expected_ms,
            }
            for reference in references
        ],
    }


def show_cross(index: LogIndex, version: int, keys: list[str]) -> Report:
    """Report what a version has learned of two ids together."""
    named = []
    for key in keys:
        field, equals, text = key.partition("=")
        if not equals:
            raise UserError(f"--cross {key}: write FIELD=ID twice, such as user_id=7 genre=war")
        named.append((field, text))
    cross = find_cross(VersionImage(index, version), named)
    document = {"version": version, "name": version_name(version), **asdict(cross)}
    return Report(document, cross_lines(cross, version, dict(named)))


def cross_lines(cross: Cross, version: int, ids: dict[str, str]) -> Iterator[str]:
    """Write the weights of a cross, or why there are none; `ids` as they were asked for, by field."""
    shown = " x ".join(
        f"{field}={ids.get(field, row_id)}" for field, row_id in zip(cross.fields, cross.ids, strict=True)
    )
    live = "" if cross.is_live else f"; crosses of {' x '.join(cross.fields)} are not learned at present"
    yield f"{shown} at version {version_name(version)}{live}"
    if cross.reason:
        yield f"  {cross.reason}"
        return
    for weight in cross.weights:
        what = f"weight {format_number(weight.weight)}, information {format_number(weight.information)}"
        yield f"  {weight.label:<9} {what}"
    yield f"  seen      {cross.count:,} times, last at {format_time(cross.last_seen_ms or 0)}"
