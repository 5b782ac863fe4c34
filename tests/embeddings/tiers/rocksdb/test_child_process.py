"""The spill's process can be killed at any time, and dies with its owner."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from springtide.embeddings.errors import SpillError
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.record_kinds import ABSENT
from springtide.embeddings.tiers.rocksdb.channel import ProcessSettings
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from tests.embeddings.tiers.spill_support import assert_found, find, impatient, kill, numbered_rows
from tests.support.processes import IMPORT_PATH

DIM, WIDTH = 4, 9
ROOT = Path(__file__).parents[4]


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[RocksSpill]:
    made = RocksSpill(tmp_path / "spill", dim=DIM, state_width=WIDTH)
    yield made
    made.close()


def test_a_killed_process_loses_nothing(spill: RocksSpill) -> None:
    rows = numbered_rows(np.arange(5000), DIM, WIDTH)
    spill.write(rows, 5000)
    spill.drain()
    kill(spill)
    assert_found(spill, rows)
    kill(spill)
    newer = numbered_rows(np.arange(2500), DIM, WIDTH, version=1)
    spill.write(newer, 0)
    spill.drain()
    kill(spill)
    assert_found(spill, newer)
    assert_found(spill, rows.take(np.arange(2500, 5000)))
    assert len(spill.read_all()) == 5000
    assert spill.counters()["spill_starts"] == 4


def test_kills_during_writes_and_finds_never_show_older_rows(spill: RocksSpill) -> None:
    over = threading.Event()

    def killer() -> None:
        while not over.wait(0.03):
            process = spill._worker._process
            if process is not None:
                process.popen.kill()

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        for version in range(12):
            rows = numbered_rows(np.arange(version * 500, version * 500 + 6000), DIM, WIDTH, version=version)
            spill.write(rows, 500)
            assert_found(spill, rows)
            older = numbered_rows(np.arange(version * 500), DIM, WIDTH)
            found = find(spill, older)
            versions = found.rows.last_seen - older.id
            np.testing.assert_array_equal(versions, older.id // 500)
    finally:
        over.set()
        thread.join()
    spill.drain()
    assert len(spill.read_all()) == 11 * 500 + 6000


def test_absent_keys_cost_no_request(spill: RocksSpill) -> None:
    spill.write(numbered_rows(np.arange(1000), DIM, WIDTH), 1000)
    spill.drain()
    kill(spill)
    strange = numbered_rows(np.arange(10**9, 10**9 + 1000), DIM, WIDTH)
    strange = strange.take(~spill._catalog.generations[0].databases[0].keys.contains(strange.key_hash))
    assert (find(spill, strange).kinds_U == ABSENT).all()
    assert spill.counters()["spill_starts"] == 1
    assert spill.counters()["spill_filter_negatives"] == len(strange) > 980


def test_a_process_that_does_not_respond_is_killed(spill: RocksSpill) -> None:
    rows = numbered_rows(np.arange(100), DIM, WIDTH)
    spill.write(rows, 100)
    spill.drain()
    process = spill._worker._process
    assert process is not None
    os.kill(process.popen.pid, signal.SIGSTOP)
    with impatient(spill), pytest.raises(SpillError, match="does not respond"):
        find(spill, rows)
    assert_found(spill, rows)
    assert spill.counters()["spill_starts"] == 2


def test_concurrent_finds_beside_a_writer(spill: RocksSpill) -> None:
    rows = numbered_rows(np.arange(20_000), DIM, WIDTH)
    spill.write(rows, 20_000)
    spill.drain()
    errors: list[BaseException] = []

    def look(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(5):
                assert_found(spill, rows.take(rng.integers(0, 20_000, 6000)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(7)]
    for thread in threads:
        thread.start()
    for start in range(30_000, 60_000, 3000):
        spill.write(numbered_rows(np.arange(start, start + 3000), DIM, WIDTH), 3000)
    for thread in threads:
        thread.join()
    assert not errors


def test_a_generation_is_kept_until_no_find_reads_it(spill: RocksSpill) -> None:
    rows = numbered_rows(np.arange(3000), DIM, WIDTH)
    spill.write(rows, 3000)
    spill.drain()
    with spill._worker.reading() as (_, databases):
        spill.destroy_generations(spill.open_generation())
        assert (find(spill, rows).kinds_U == ABSENT).all()
        found = FoundRows.nothing(rows.feature, rows.id, DIM, WIDTH)
        spill._read_stored(databases[0], np.argsort(rows.key_hash), found, spill._worker.deadline())
        np.testing.assert_array_equal(found.rows.value, rows.value)
        assert (spill.folder / "000000").exists()
    spill.drain()
    assert not (spill.folder / "000000").exists()


OWNER = """
import json, os, sys
from pathlib import Path
import numpy as np
from springtide_client.rows.row_block import RowBlock
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
spill = RocksSpill(Path(sys.argv[1]), dim=4, state_width=0)
spill.write(RowBlock.zeros(1, 4, 0), 1)
spill.drain()
print(spill._worker._process.popen.pid, flush=True)
sys.stdin.read()
"""


def test_it_dies_with_its_owner_and_leaves_no_shared_memory(tmp_path: Path) -> None:
    shared = set(os.listdir("/dev/shm"))
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "spill")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": IMPORT_PATH},
    )
    assert owner.stdout is not None
    assert owner.stdin is not None
    child = int(owner.stdout.readline())
    watched = os.pidfd_open(child)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    owner.stdin.close()
    assert select.select([watched], [], [], 10)[0], "the process outlives its owner"
    os.close(watched)
    assert {name for name in os.listdir("/dev/shm") if "springtide" in name} <= shared


def test_an_owner_that_dies_while_the_process_starts_leaves_no_traceback(tmp_path: Path) -> None:
    """The kernel closes the sockets of a dying owner before it sends the death signal."""
    memory = os.memfd_create("channels")
    settings = ProcessSettings(str(tmp_path), os.getpid(), memory, [], num_keys=16, record_bytes=8)
    os.ftruncate(memory, settings.layout.num_bytes)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    settings.sockets.append(theirs.fileno())
    ours.close()
    done = subprocess.run(
        [sys.executable, "-m", "springtide.embeddings.tiers.rocksdb.process_main", settings.dumps()],
        env=os.environ | {"PYTHONPATH": IMPORT_PATH},
        pass_fds=[memory, theirs.fileno()],
        capture_output=True,
        text=True,
        check=False,
    )
    theirs.close()
    os.close(memory)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_starts_without_numpy_torch_and_numba() -> None:
    code = (
        "import sys, json; import springtide.embeddings.tiers.rocksdb.process_main; "
        "print(json.dumps([name for name in ('numpy', 'torch', 'numba', 'rocksdbpy') if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env=os.environ | {"PYTHONPATH": IMPORT_PATH}
    )
    assert json.loads(done.stdout) == []
