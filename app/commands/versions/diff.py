"""`springtide versions diff A B`: compare two versions."""

import argparse
from collections.abc import Iterator
from typing import Any

from springtide.app.commands.command import Report, format_bytes, format_number, format_signed, format_time
from springtide.app.commands.versions.show import score_lines
from springtide.app.config.load import Config
from springtide.app.errors import UserError
from springtide.app.version_log.inspection.diff import VersionDiff, diff_versions
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.verify.report import plural
from springtide_client.format.records import version_name
from springtide_client.log.directory import LogDirectory

DENSE_LINES = 20


def diff(config: Config, arguments: argparse.Namespace) -> Report:
    if arguments.top < 0:
        raise UserError(f"--top {arguments.top}: at least 0")
    index = LogIndex(LogDirectory(config.log.path))
    older, newer = sorted(index.resolve(name) for name in arguments.versions)
    difference = diff_versions(index, older, newer, top=arguments.top)
    return Report(document_of(difference), difference_lines(difference))


def document_of(difference: VersionDiff) -> dict[str, Any]:
    """Return the difference as JSON has it."""
    older, newer = difference.metas
    names = ("from", "to")
    numbers = (difference.older, difference.newer)
    both = zip(names, numbers, difference.metas, strict=True)
    return {
        **{
            name: {"version": version, "name": version_name(version), "created_ms": meta.created_ms}
            for name, version, meta in both
        },
        "versions": difference.num_versions,
        "has_gap": difference.has_gap,
        "bytes": difference.num_bytes,
        "rows": vars(difference.total),
        "features": {difference.feature_name(feature): vars(counts) for feature, counts in difference.features.items()},
        "mean_move": difference.mean_move,
        "moves": [
            {
                "feature": difference.feature_name(move.feature),
                "id": move.id,
                "id_string": difference.id_strings.get((move.feature, move.id)),
                "distance": move.distance,
                "count": move.count,
            }
            for move in difference.moves
        ],
        "dense": [change._asdict() for change in difference.dense],
        "samples": newer.samples_trained - older.samples_trained,
        "scores": {name: meta.scores for name, meta in zip(names, difference.metas, strict=True)},
        "positions": {name: meta.positions for name, meta in zip(names, difference.metas, strict=True)},
        "dead_letters": {
            name: newer.dead_letters.get(name, 0) - older.dead_letters.get(name, 0)
            for name in sorted({*older.dead_letters, *newer.dead_letters})
        },
        "expiry_cutoffs": {
            difference.feature_name(int(feature)): {"from": older.expiry_cutoffs.get(feature), "to": cutoff}
            for feature, cutoff in newer.expiry_cutoffs.items()
            if cutoff != older.expiry_cutoffs.get(feature)
        },
    }


def difference_lines(difference: VersionDiff) -> Iterator[str]:
    """Write the difference for people."""
    older, newer = difference.metas
    for word, version, meta in (("from", difference.older, older), ("to", difference.newer, newer)):
        yield (
            f"{word:<5} {version_name(version):<10} {format_time(meta.created_ms)}  {meta.samples_trained:>13,} samples"
        )
    samples = newer.samples_trained - older.samples_trained
    versions = plural(difference.num_versions, "version")
    gap = "; the log no longer holds every version between them" if difference.has_gap else ""
    yield f"between them {versions}, {format_bytes(difference.num_bytes)}, {samples:+,} samples{gap}"
    yield from row_lines(difference)
    yield from move_lines(difference)
    yield from dense_lines(difference)
    yield from stream_lines(difference)


def row_lines(difference: VersionDiff) -> Iterator[str]:
    """Write the row counts, per feature and in total."""
    width = max([8, *(len(difference.feature_name(feature)) for feature in difference.features)])
    columns = ("added", "changed", "came back", "erased", "expired")
    yield (f"\n{'rows':<{width}}  " + "  ".join(f"{column:>9}" for column in columns))
    counted = [(difference.feature_name(feature), counts) for feature, counts in sorted(difference.features.items())]
    for name, counts in [*counted, ("total", difference.total)]:
        figures = zip(columns, vars(counts).values(), strict=True)
        yield (f"{name:<{width}}  " + "  ".join(f"{count:>{max(9, len(column))},}" for column, count in figures))


def move_lines(difference: VersionDiff) -> Iterator[str]:
    """Write the rows that moved most."""
    if not difference.moves:
        return
    width = max(len(difference.feature_name(move.feature)) for move in difference.moves)
    yield f"\nlargest moves (L2; the mean over changed rows is {format_number(difference.mean_move)})"
    for move in difference.moves:
        key = f"{difference.feature_name(move.feature):<{width}}  {difference.display_id(move)}"
        yield f"  {format_number(move.distance):>9}  {key}  (count {format_signed(move.count)})"


def dense_lines(difference: VersionDiff) -> Iterator[str]:
    """Write how far each parameter moved, relative to its norm before."""
    moved = [change for change in difference.dense if change.distance > 0]
    yield f"\ndense: {len(moved)} of {len(difference.dense)} parameters and buffers changed"
    shown = moved[:DENSE_LINES]
    width = max((len(change.name) for change in shown), default=0)
    for change in shown:
        share = "from zero" if change.relative is None else f"{100 * change.relative:.3g} %"
        shape = " x ".join(str(length) for length in change.shape) or "()"
        yield f"  {change.name:<{width}}  {share:>10}  (L2 {format_number(change.distance)}, shape {shape})"
    if len(moved) > len(shown):
        yield f"  and {len(moved) - len(shown)} that moved less: --json lists them all"


def stream_lines(difference: VersionDiff) -> Iterator[str]:
    """Write stream positions, scores, dead letters and expiry cutoffs."""
    older, newer = difference.metas
    yield "\nstream"
    for partition, position in newer.positions.items():
        before = older.positions.get(partition)
        if before is None or before["topic_id"] != position["topic_id"]:
            yield f"  {partition}: new, at {position['offset']:,}"
        else:
            moved = position["offset"] - before["offset"]
            yield f"  {partition}: {before['offset']:,} to {position['offset']:,} ({format_signed(moved)})"
    then, now = dict(score_lines(older.scores)), score_lines(newer.scores)
    for task, values in now:
        yield f"  {task}: {then.get(task, 'no scores')}  ->  {values}"
    for reason, letters in newer.dead_letters.items():
        if more := letters - older.dead_letters.get(reason, 0):
            yield f"  dead letters, {reason}: {format_signed(more)}"
    for feature, cutoff in newer.expiry_cutoffs.items():
        if cutoff != older.expiry_cutoffs.get(feature):
            name = difference.feature_name(int(feature))
            yield f"  {name}: rows last seen before {format_time(cutoff)} have expired"
