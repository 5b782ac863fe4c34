"""The first rows of a file or a topic, as the messages that a trainer decodes."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from springtide.app.errors import UserError
from springtide.stream.history.input_file import InputFile
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.range_reader import read_range
from springtide.stream.positions import Position
from springtide_client.encode import DECIMAL
from springtide_client.system.json_text import decode_json

Row = dict[str, Any]


@dataclass(frozen=True)
class SampledRows:
    """Rows that are JSON objects, the messages they came in, and how many other rows there were."""

    origin: str  # "clicks.csv" or "topic clicks"
    rows: list[Row]
    messages: list[bytes]
    num_broken: int
    is_whole: bool  # True: there are no more rows than these
    has_types: bool = True  # False: the messages hold strings alone, which `rows` has as numbers where they look so
    partitions: list[int] | None = None  # of each row; None: of a file
    record_ms: list[int] | None = None  # Kafka's time of each row

    @property
    def columns(self) -> list[str]:
        """The fields, in the order in which they first appear."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


def sample_file(file: InputFile, num: int) -> SampledRows:
    """Return the first rows of a file; UserError if there is none."""
    messages = [row.value for row in itertools.islice(file.rows(), num + 1)]
    # cells of delimited files are all strings: there, what parses as a number is one
    sample, _ = _sample(str(file.path), messages[:num], has_types=file.format not in ("csv", "tsv"))
    return replace(sample, is_whole=len(messages) <= num)


def sample_topic(kafka: KafkaConfig, topic: str, num: int) -> SampledRows:
    """Return the first records of a topic; UserError if there is none, StreamError if the broker does not answer."""
    with Admin(kafka) as admin:
        found = admin.require_topic(topic)
        begins, ends = admin.beginning_offsets(found), admin.end_offsets(found)
    share = max(1, num // len(ends))  # of each partition, as their times go on side by side
    stops = {p: Position(found.id, min(end, begins[p] + share)) for p, end in ends.items()}
    messages: list[bytes] = []
    partitions, record_ms = list[int](), list[int]()
    for raw in read_range(kafka, {}, stops):
        messages += [raw.value(n) or b"" for n in range(len(raw))]
        partitions += [raw.partition.number] * len(raw)
        record_ms += raw.record_ms_N.tolist()
    sample, kept = _sample(f"topic {topic}", messages, has_types=True)
    return replace(
        sample,
        is_whole=all(stops[p].offset == end for p, end in ends.items()),
        partitions=[partitions[n] for n in kept],
        record_ms=[record_ms[n] for n in kept],
    )


def _sample(origin: str, messages: Sequence[bytes], *, has_types: bool) -> tuple[SampledRows, list[int]]:
    """Return the rows that these messages are, and the number of each one's message."""
    if not messages:
        raise UserError(f"{origin} has no rows: there is nothing to look at")
    rows, kept = [], []
    for n, message in enumerate(messages):
        try:
            row = decode_json(message, dict[str, Any])
        except msgspec.DecodeError:
            continue
        rows.append(row if has_types else with_numbers(row.items()))
        kept.append(n)
    if not rows:
        raise UserError(f"none of the {len(messages):,} rows of {origin} is a JSON object: {messages[0][:60]!r}")
    num_broken = len(messages) - len(rows)
    return SampledRows(origin, rows, [messages[n] for n in kept], num_broken, is_whole=True, has_types=has_types), kept


def with_numbers(cells: Iterable[tuple[str, str | None]]) -> Row:
    """Return cells with numbers for those that look like one; `007` stays a string: a number has no leading zeros."""
    return {name: cell if cell is None else _number_or_text(cell) for name, cell in cells}


def _number_or_text(cell: str) -> int | float | str:
    digits = cell.lstrip("+-")
    if not DECIMAL.fullmatch(cell) or (len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()):
        return cell
    if digits.isdigit():
        value = int(cell)
        return value if -(2**63) <= value < 2**63 else cell
    return float(cell)
