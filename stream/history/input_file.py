"""Reads the rows of a CSV, TSV, JSONL or Parquet file as JSON messages, in the file's order. Knows no Kafka.

The file is local, or in a file system of pyarrow, such as S3; it is never in memory as a whole.
"""

import csv
import gzip
import io
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from springtide.stream.decode.plain_values import to_plain
from springtide.stream.errors import InputFileError
from springtide_client.system.json_text import decode_json

if TYPE_CHECKING:
    from pyarrow import Table
    from pyarrow.fs import FileSystem
    from pyarrow.parquet import ParquetFile

BATCH_ROWS = 4_096
BLOCK_BYTES = 1 << 20
MAX_CELL_CHARACTERS = 16 << 20
FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
encode_json = msgspec.json.Encoder().encode


class FileRow(NamedTuple):
    """One message, its key if a key column is named, and the fraction of the file (0..1) that has been read."""

    value: bytes
    key: bytes | None
    fraction: float


class InputFile:
    """A CSV, TSV, JSONL (each also .gz) or Parquet file."""

    def __init__(self, path: Path, *, key: str | None = None, filesystem: "FileSystem | None" = None) -> None:
        """InputFileError if there is no such file or its type is not known; `rows` checks the key column.

        `filesystem`: the one that the path is in; None is this machine's.
        """
        self.path = path
        self.key = key
        self._filesystem = filesystem
        suffixes = [suffix.lower() for suffix in path.suffixes]
        self._is_gzipped = suffixes[-1:] == [".gz"]
        ending = suffixes[-2:-1] if self._is_gzipped else suffixes[-1:]
        format_name = FORMATS.get(ending[0]) if ending else None
        if format_name is None:
            raise InputFileError(
                f"{path.name} is neither .csv, .tsv, .jsonl (or these with .gz) nor .parquet: rename it"
            )
        if filesystem is None and not path.is_file():
            raise InputFileError(f"there is no file {path}")
        self.format = format_name

    def rows(self) -> Iterator[FileRow]:
        """Yield every row; InputFileError names the line that cannot be read, or a missing key column."""
        reader: Callable[[], Iterator[FileRow]] = {
            "csv": lambda: self._delimited(","),
            "tsv": lambda: self._delimited("\t"),
            "jsonl": self._lines,
            "parquet": self._parquet,
        }[self.format]
        return reader()

    def messages(self, skip: int = 0, *, columns: Sequence[str] | None = None) -> Iterator[list[bytes]]:
        """Yield the messages of `rows`, some thousands at a time, without the first `skip`.

        `columns`: those that are needed; others may be left out.
        """
        if self.format == "jsonl":
            blocks = self._blocks_of_lines()
        elif self.format == "parquet":
            blocks = (list(map(message_of, table.to_pylist())) for table in self.tables(skip, columns))
            skip = 0
        else:
            rows = self.rows()
            blocks = iter(lambda: [row.value for row in itertools.islice(rows, BATCH_ROWS)], [])
        for block in blocks:
            if skip < len(block):
                yield block[skip:] if skip else block
            skip = max(0, skip - len(block))

    @contextmanager
    def _open(self) -> Iterator[tuple[IO[bytes], Callable[[], float]]]:
        """Open the file for reading bytes; the second value returns the fraction (0..1) read so far."""
        with self._open_raw() as raw:
            size = max(raw.seek(0, io.SEEK_END), 1)
            raw.seek(0)
            # a file of pyarrow knows no lines
            lined = raw if self._filesystem is None else cast(IO[bytes], io.BufferedReader(cast(Any, raw), BLOCK_BYTES))
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=lined)) if self._is_gzipped else lined
            yield stream, lambda: min(raw.tell() / size, 1.0)

    def _open_raw(self) -> IO[bytes]:
        if self._filesystem is None:
            return self.path.open("rb")
        return cast(IO[bytes], self._filesystem.open_input_file(self.path.as_posix()))

    def _delimited(self, delimiter: str) -> Iterator[FileRow]:
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        # utf-8-sig: spreadsheets write a byte order mark before the first column's name
        with self._open() as (stream, fraction), io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
            source = _Lines(text)
            # tab-separated files have no quoting: a cell may begin with a quote
            no_quotes = csv.reader(source, delimiter=delimiter, quoting=csv.QUOTE_NONE)
            lines = csv.reader(source, delimiter=delimiter) if delimiter == "," else no_quotes
            try:
                header = next(lines, None)
                if header is None:
                    raise InputFileError(f"{self.path.name} is empty: its first line must name the columns")
                self._check_header(header)
                at = header.index(self.key) if self.key is not None else -1
                self._check_delimiter(header, delimiter)
                is_first = True  # a first row with too many cells means that the header is wrong
                source.taken.clear()
                for cells in lines:
                    if len(source.taken) > 1 or source.is_at_end:
                        self._check_quotes(source.taken, lines.line_num)
                    source.taken.clear()
                    if not cells:
                        continue
                    if len(cells) > len(header):
                        if is_first:
                            raise InputFileError(
                                f"{self.path.name} line {lines.line_num}: {len(cells)} cells, but {len(header)} columns"
                            )
                        # which cell is too many is not known: a list is no record, and becomes a dead letter
                        yield FileRow(encode_json(cells), None, fraction())
                        continue
                    is_first = False
                    cells += [""] * (len(header) - len(cells))
                    value = encode_json(dict(zip(header, [cell or None for cell in cells], strict=True)))
                    yield FileRow(value, (cells[at].encode() or None) if at >= 0 else None, fraction())
            except UnicodeDecodeError as error:
                wrong = error.object[error.start : error.end]
                raise InputFileError(f"{self.path.name} is not UTF-8 ({wrong!r}): convert it, as with iconv") from None
            except (csv.Error, OSError, EOFError) as error:
                raise InputFileError(f"{self.path.name} line {lines.line_num}: {error}") from None

    def _lines(self) -> Iterator[FileRow]:
        with self._open() as (stream, fraction):
            lines = iter(stream)
            while True:
                try:
                    line = next(lines, None)
                except (OSError, EOFError) as error:
                    raise InputFileError(f"{self.path.name}: {error}") from None
                if line is None:
                    return
                if value := line.strip():
                    value = replace_nan(value)
                    yield FileRow(value, self._key_of_json(value), fraction())

    def _blocks_of_lines(self) -> Iterator[list[bytes]]:
        with self._open() as (stream, _):
            while True:
                try:
                    lines = stream.readlines(BLOCK_BYTES)
                except (OSError, EOFError) as error:
                    raise InputFileError(f"{self.path.name}: {error}") from None
                if not lines:
                    return
                yield [replace_nan(value) for line in lines if (value := line.strip())]

    @contextmanager
    def _open_parquet(self) -> Iterator["ParquetFile"]:
        import pyarrow.lib
        import pyarrow.parquet

        with self._open_raw() as raw:
            try:
                file = pyarrow.parquet.ParquetFile(raw)
            except (pyarrow.lib.ArrowException, OSError) as error:
                raise InputFileError(f"{self.path.name} is not a valid Parquet file: {error}") from None
            with file:
                self._check_key(file.schema_arrow.names)
                yield file

    def tables(self, skip: int = 0, columns: Sequence[str] | None = None) -> Iterator["Table"]:
        """Yield a Parquet file's rows from row `skip` on; row groups before it are not read."""
        from pyarrow import Table

        from springtide.stream.decode.arrow import without_nanoseconds

        with self._open_parquet() as file:
            groups = list(range(file.metadata.num_row_groups))
            while groups and (num_rows := file.metadata.row_group(groups[0]).num_rows) <= skip:
                skip -= num_rows
                del groups[0]
            for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=columns):
                if skip < batch.num_rows:
                    yield without_nanoseconds(Table.from_batches([batch.slice(skip)]))
                skip = max(0, skip - batch.num_rows)

    def _parquet(self) -> Iterator[FileRow]:
        with self._open_parquet() as file:
            num, total = 0, max(file.metadata.num_rows, 1)
        for table in self.tables():
            for record in table.to_pylist():
                plain = {name: to_json_value(cell) for name, cell in record.items()}
                num += 1
                yield FileRow(encode_json(plain), self._key_of(plain), num / total)

    def _check_quotes(self, row: list[str], last_line: int) -> None:
        """Raise InputFileError for a row of several lines whose quotes are wrong: an open one swallows lines."""
        try:
            list(csv.reader(row, strict=True))
        except csv.Error:
            first = last_line - len(row) + 1
            raise InputFileError(
                f"{self.path.name} line {first}: a quote is not closed: {len(row):,} lines would be one row"
            ) from None

    def _check_delimiter(self, header: list[str], delimiter: str) -> None:
        """Raise InputFileError for a header that is one cell, but has other delimiters in it."""
        if len(header) == 1 and (other := next((each for each in ",;\t|" if each in header[0]), None)):
            raise InputFileError(
                f"{self.path.name} has one column, {header[0][:40]!r}: cells are separated by {delimiter!r} in "
                f"a .{self.format} file: convert it, if they are separated by {other!r}"
            )

    def _check_header(self, columns: list[str]) -> None:
        if twice := next((name for name in columns if name and columns.count(name) > 1), None):
            raise InputFileError(f"{self.path.name} has two columns {twice!r}: rename one of them")
        self._check_key(columns)

    def _check_key(self, columns: list[str]) -> None:
        if self.key is not None and self.key not in columns:
            raise InputFileError(f"--key {self.key}: {self.path.name} has no such column, only {', '.join(columns)}")

    def _key_of_json(self, value: bytes) -> bytes | None:
        if self.key is None:
            return None
        try:
            record = decode_json(value)
        except msgspec.DecodeError:
            return None
        return self._key_of(record) if isinstance(record, dict) else None

    def _key_of(self, record: dict[str, Any]) -> bytes | None:
        cell = record.get(self.key) if self.key is not None else None
        if cell is None:
            return None
        return cell.encode() if isinstance(cell, str) else encode_json(cell)


class _Lines:
    """The lines of a text, and which were `taken`; `is_at_end` once more were asked for than there are."""

    def __init__(self, text: Iterable[str]) -> None:
        self._lines, self.is_at_end = iter(text), False
        self.taken: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except StopIteration:
            self.is_at_end = True
            raise
        self.taken.append(line)
        return line


def replace_nan(value: bytes) -> bytes:
    """Return the JSON with null for NaN and Infinity; the same bytes if Python cannot parse them either.

    Python and pandas write them, but they are not JSON. A line that is not JSON at all becomes a dead letter.
    """
    if b"NaN" not in value and b"Infinity" not in value:
        return value
    import json

    try:
        return encode_json(json.loads(value, parse_constant=lambda _: None))
    except ValueError:
        return value


def message_of(record: dict[str, Any]) -> bytes:
    """Return a row of a Parquet file as a JSON message."""
    return encode_json({name: to_json_value(cell) for name, cell in record.items()})


def to_json_value(cell: Any) -> Any:
    """Return a Parquet value as JSON: NaN and infinity as null, times in milliseconds, bytes as a string."""
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if cell is None or isinstance(cell, (bool, int, str)):
        return cell
    if isinstance(cell, datetime):
        return to_plain(cell)
    if isinstance(cell, date):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return to_json_value(float(cell))
    if isinstance(cell, bytes):
        return cell.decode("utf-8", errors="replace")
    if isinstance(cell, dict):
        return {name: to_json_value(part) for name, part in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [to_json_value(part) for part in cell]
    return str(cell)
