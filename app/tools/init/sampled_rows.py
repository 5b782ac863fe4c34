"""The first rows of a file or a topic, as the messages that a trainer decodes."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
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

    @property
    def columns(self) -> list[str]:
        """The fields, in the order in which they first appear."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


def sample_file(file: InputFile, num: int) -> SampledRows:
    """Return the first rows of a file; UserError if there is none."""
    messages = [row.value for row in itertools.islice(file.rows(), num + 1)]
    # cells of delimited files are all strings: there, what parses as a number is one
    return _sample(str(file.path), messages, num, has_types=file.format not in ("csv", "tsv"))


def sample_topic(kafka: KafkaConfig, topic: str, num: int) -> SampledRows:
    """Return the first records of a topic; UserError if there is none, StreamError if the broker does not answer."""
    with Admin(kafka) as admin:
        found = admin.require_topic(topic)
        ends = {partition: Position(found.id, end) for partition, end in admin.end_offsets(found).items()}
    raws = read_range(kafka, {}, ends)
    messages: list[bytes] = []
    for raw in raws:
        messages += [raw.value(n) or b"" for n in range(len(raw))]
        if len(messages) > num:
            break
    return _sample(f"topic {topic}", messages, num, has_types=True)


def _sample(origin: str, messages: list[bytes], num: int, *, has_types: bool) -> SampledRows:
    if not messages:
        raise UserError(f"{origin} has no rows: there is nothing to look at")
    rows, kept = [], []
    for message in messages[:num]:
        try:
            row = decode_json(message, dict[str, Any])
        except msgspec.DecodeError:
            continue
        rows.append(row if has_types else with_numbers(row.items()))
        kept.append(message)
    if not rows:
        raise UserError(f"none of the {len(messages[:num]):,} rows of {origin} is a JSON object: {messages[0][:60]!r}")
    num_broken = len(messages[:num]) - len(rows)
    return SampledRows(origin, rows, kept, num_broken, is_whole=len(messages) <= num, has_types=has_types)


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
