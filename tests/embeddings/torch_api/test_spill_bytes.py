"""The spill folder of a DynamicEmbedding keeps its limit, over a real RocksDB; `make torture` runs the long form."""

from pathlib import Path

from tests.torture.disk.spill_bytes import run

MIB = 1 << 20


def test_the_folder_keeps_spill_bytes_at_full_speed(tmp_path: Path) -> None:
    outcome = run(tmp_path, "8MiB", lambda number: number < 120, batch=1000)  # 11 MB of rows
    assert outcome.peak <= 1.25 * 8 * MIB
    assert outcome.counters["spilled"] > 100_000
    assert 0 < outcome.num_reported <= outcome.counters["created"] - outcome.num_rows
