"""Small files of clicks whose user is the number of the click, and readers of them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from springtide.stream.columns import Columns
from springtide.stream.decode.decoder import DecodePipeline
from springtide.stream.decode.erasure_filter import Erasure, ErasureFilter
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.history.config import HistoryConfig
from springtide.stream.history.place import HistoryPlace
from springtide.stream.history.reader import HistoryReader
from springtide.stream.history.seam_filter import SeamFilter
from springtide.stream.history.table_rows import open_decoder
from springtide.stream.history.times import ordered_files
from springtide.stream.positions import HISTORY, Position
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("click",), timestamp="ts", categorical=("user_id",))
START_MS = 1_700_000_000_000


def click(user: int, *, ts: int | None = None) -> dict[str, Any]:
    """A click of this user; each user is a second later than the one before."""
    return {"user_id": user, "click": user % 2, "ts": START_MS + 1000 * user if ts is None else ts}


def write_file(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows in the format that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=max(1, len(rows) // 3))
    elif path.suffix == ".csv":
        path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_clicks(path: Path, users: Iterable[int]) -> Path:
    """Write the clicks of these users."""
    return write_file(path, [click(user) for user in users])


def reader(
    path: Path | str,
    at: Position | None = None,
    *,
    until_ms: int | None = None,
    erasures: Sequence[Erasure] = (),
    **settings: Any,
) -> HistoryReader:
    """A reader of the files that a pattern names, from the first row or from a position on."""
    history, decode = HistoryConfig(path=str(path), **settings), DecodeConfig()
    files = ordered_files(history, SCHEMA)
    at = at or Position(HistoryPlace.first(files[0], until_ms).topic_id(), 0)
    pipeline = DecodePipeline(open_decoder(SCHEMA, decode), ErasureFilter(SCHEMA, erasures) if erasures else None)
    seam = SeamFilter(SCHEMA, decode, HistoryPlace.parse(at.topic_id).until_ms)
    return HistoryReader(files, pipeline, at, seam=seam, sort_rows=history.sort_rows)


def users_of(columns: Iterable[Columns]) -> list[int]:
    """The users, in the order in which they are learned."""
    return [int(user) for part in columns for user in part.features.categorical_NC[:, 0]]


def positions_in(columns: Iterable[Columns]) -> list[tuple[int, Position]]:
    """After each row: its user, and the position from which a restart goes on."""
    found = []
    for part in columns:
        for n, user in enumerate(part.features.categorical_NC[:, 0].tolist()):
            end = part.slice(0, n + 1).end_offsets[HISTORY]
            found.append((user, Position(part.topic_ids[HISTORY], end)))
    return found
