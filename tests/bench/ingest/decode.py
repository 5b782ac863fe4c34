"""ingest.decode: messages in memory to columns, on one core, beside the decoders that people use for each format."""

# N records
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from springtide.stream.columns import RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.positions import Partition
from tests.bench.harness.peer_process import Peers
from tests.bench.harness.processes import save_array
from tests.bench.harness.report import Case, alternate, arguments, fail, report, timed, use_trainer_process_settings
from tests.bench.ingest.columns import arrays_of, check_columns
from tests.bench.workloads.events import FIRST_MS, SCHEMA, make_events

NEEDED = 3.0
# a format is a line here, and its decoders in `DECODERS` of tests/bench/peers/ingest_peer.py
PEERS = {"json": ("msgspec", "orjson", "pysimdjson", "pyarrow", "polars"), "msgpack": ("msgspec",)}
NOW_MS = FIRST_MS + 1_000_000_000


def measure(message_format: str, peers: Peers, folder: Path, num_records: int, rounds: int, repeats: int) -> list[Case]:
    """Check the columns of every decoder of a format, then let all decode the same messages in turn."""
    config = DecodeConfig(format=message_format)
    values = list(map(config.message_format.codec(config).from_json, make_events(num_records)))
    raw = RawRecords.from_messages(Partition("events", 0), values)
    decoder = Decoder(SCHEMA, config)
    columns = decoder.decode(raw, NOW_MS)
    if len(columns) != num_records or columns.dead_letters:
        fail(f"{len(columns.dead_letters)} dead letters of {message_format}")
    data = save_array(folder, "data", np.frombuffer(b"".join(values), np.uint8))
    ends = save_array(folder, "ends", np.cumsum([len(value) for value in values]))
    peers.call_all("take_messages", data=data, ends=ends)
    names = [name for name in PEERS[message_format] if name in peers.installed]
    for name in names:
        path = folder / "columns.npz"
        peers.installed[name].call("run_decode", peer=name, message_format=message_format, rounds=1, path=str(path))
        check_columns(arrays_of([columns]), path, name)

    def decode_rounds() -> None:
        for _ in range(rounds):
            decoder.decode(raw, NOW_MS)

    def run_peer(name: str) -> float:
        found = peers.installed[name].call("run_decode", peer=name, message_format=message_format, rounds=rounds)
        return float(num_records * rounds / found["seconds"])

    contenders = {"ours": partial(timed, decode_rounds, num_records * rounds)}
    rates = alternate(contenders | {name: partial(run_peer, name) for name in names}, repeats=repeats)
    size = len(b"".join(values)) / num_records
    return [
        Case(
            f"{message_format}, {size:.0f} bytes, against {name}",
            "records/s",
            rates["ours"],
            {name: rates[name]},
            NEEDED,
        )
        for name in names
    ]


def main() -> None:
    options = arguments(__doc__)
    use_trainer_process_settings()
    num_records, rounds, repeats = (2_000, 1, 2) if options.quick else (20_000, 20, 7)
    every = {name: "ingest" for names in PEERS.values() for name in names}
    cases: list[Case] = []
    with Peers(every, venvs=options.peers, threads=1) as peers, tempfile.TemporaryDirectory() as folder:
        for message_format in PEERS:
            cases += measure(message_format, peers, Path(folder), num_records, rounds, repeats)
        report("ingest.decode", cases, options, packages=("numpy", "numba", "msgspec"), peers=peers.versions)
