"""Files, then the topic: a trainer that is killed around the seam learns every sample once, as from one topic."""

import itertools
import json
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide_client.format.records import VersionMeta
from springtide_client.log.directory import LogDirectory
from tests.e2e.workspace import Workspace, read_view
from tests.support.config import edit_config
from tests.support.kafka import create_topic, produce
from tests.support.scale import IS_LONG
from tests.support.waiting import wait_until

MOVIELENS = Path(__file__).parents[3] / "shared" / "data" / "movielens-100k.parquet"
NUM_KILLS = 10 if IS_LONG else 3
SETTINGS = {
    # batches are a function of the stream
    "train": {"max_wait_seconds": float("inf"), "batch_size": 64},
    "log": {"publish_seconds": 0.01},
}
Rows = list[dict[str, Any]]


def make_rows(number: int) -> Rows:
    """Return clicks in time order, three in each second."""
    random = np.random.default_rng(3)
    return [
        {
            "user_id": int(random.integers(300)),
            "item_id": f"item-{random.integers(200)}",
            "genres": [f"g{genre}" for genre in random.integers(0, 8, random.integers(0, 4))],
            "age": float(random.integers(18, 80)),
            "ts": 1_700_000_000_000 + 1000 * (n // 3),
            "click": int(random.random() < 0.3),
        }
        for n in range(number)
    ]


def write_history(folder: Path, rows: Rows, sizes: Sequence[int]) -> None:
    """Write the first rows as files of these sizes, Parquet and JSONL in turn."""
    folder.mkdir()
    for number, (end, size) in enumerate(zip(itertools.accumulate(sizes), sizes, strict=True)):
        part = rows[end - size : end]
        if number % 2:
            (folder / f"{number:02}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
        else:
            pa.parquet.write_table(pa.Table.from_pylist(part), folder / f"{number:02}.parquet", row_group_size=700)


def newest(log: Path) -> VersionMeta:
    """Return what the newest version says of itself."""
    return list(LogDirectory(log).records(None))[-1].meta


def learn_from_one_topic(workspace: Workspace, rows: Rows) -> Path:
    """Learn all rows from one topic in one go; return the log."""
    address = workspace.broker_address() or ""
    produce(address, "whole", [json.dumps(row).encode() for row in rows])
    config = workspace.folder / "whole.toml"
    config.write_text(workspace.config.read_text())
    log = workspace.folder / "whole"
    changes = {
        "source": {"topic": "whole", "bootstrap_servers": address},
        "log": {"path": str(log)},
        "table": {"disk_path": str(workspace.folder / "spill")},
        "history": {"path": None},
    }
    edit_config(config, changes)
    workspace.train_until_end("--no-compact", "--config", str(config))
    return log


def learn_through_kills(workspace: Workspace, targets: Sequence[int]) -> list[int]:
    """Kill a trainer at its first version of at least so many samples, for each target; then learn to the end.

    Returns how many samples each killed trainer had published.
    """
    killed_at, published = [], 0
    for target in targets:
        trainer = workspace.start("train", "--no-compact")

        def has_reached(target: int = target) -> bool:
            nonlocal published
            published = max([published, *(record.meta.samples_trained for record in cursor.read())])
            return published >= target

        with LogDirectory(workspace.log).follow(None) as cursor:
            wait_until(has_reached, f"{target} samples")
        workspace.stop(trainer, by=signal.SIGKILL)
        killed_at.append(newest(workspace.log).samples_trained)
    workspace.train_until_end("--no-compact")
    return killed_at


def check_killed_around_the_seam(
    workspace: Workspace, rows: Rows, *, sizes: Sequence[int], first_in_topic: int
) -> None:
    """The files hold the first rows, the topic those from `first_in_topic` on: they overlap."""
    write_history(workspace.folder / "history", rows, sizes)
    workspace.configure({**SETTINGS, "history": {"path": str(workspace.folder / "history" / "*")}})
    workspace.start_broker()
    workspace.produce([json.dumps(row).encode() for row in rows[first_in_topic:]])
    in_files = sum(sizes)
    seam = (first_in_topic + in_files) // 2
    step = max(64, (in_files - first_in_topic) // NUM_KILLS)
    killed_at = learn_through_kills(workspace, [seam + step * (n - NUM_KILLS // 2) for n in range(NUM_KILLS)])
    assert min(killed_at) < seam < max(killed_at)

    whole, through_kills = learn_from_one_topic(workspace, rows), workspace.log
    assert newest(through_kills).samples_trained == newest(whole).samples_trained == len(rows)
    assert newest(through_kills).scores == newest(whole).scores
    learned, expected = read_view(through_kills), read_view(whole)
    users = Counter(row["user_id"] for row in rows)
    feature = learned.schema.number("user_id")
    assert {user: learned.row_info(feature, user)["count"] for user in users} == dict(users)
    keys = np.full(len(users), feature, np.uint16), np.array(list(users), np.int64)
    np.testing.assert_array_equal(learned.lookup(*keys)[0], expected.lookup(*keys)[0])


def test_scores_after_kills_around_the_seam_are_bit_by_bit_those_of_one_topic(workspace: Workspace) -> None:
    check_killed_around_the_seam(workspace, make_rows(9_000), sizes=[2_000, 1_500, 2_500], first_in_topic=3_000)


@pytest.mark.skipif(not MOVIELENS.exists(), reason="movielens-100k.parquet is not included")
@pytest.mark.skipif(not IS_LONG, reason="`make torture` runs it")
def test_movielens_killed_ten_times_around_the_seam_scores_as_from_one_topic(workspace: Workspace) -> None:
    rows = pa.parquet.read_table(MOVIELENS).to_pylist()
    workspace.configure(
        {
            "schema": {
                "categorical": ["user_id", "item_id", "gender", "occupation", "zip_code"],
                "sequence": [],
                "dense": ["age", "release_year"],
                "share": None,
            }
        }
    )
    check_killed_around_the_seam(workspace, rows, sizes=[20_000] * 3, first_in_topic=40_000)


def test_a_replay_that_is_killed_goes_on_in_the_middle_of_the_file(workspace: Workspace) -> None:
    rows = make_rows(20_000)
    path = workspace.folder / "clicks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    workspace.start_broker()
    address = workspace.broker_address() or ""
    create_topic(address, "clicks")
    options = [str(path)]
    for target in (1, 6_000, 12_000):
        replay = workspace.start("replay", *options, "--rate", "20000")
        wait_until(lambda target=target: num_records(address, "clicks") >= target, f"{target} records")
        workspace.stop(replay, by=signal.SIGKILL)
        options = [str(path), "--resume"]
    assert num_records(address, "clicks") < len(rows)
    assert workspace.run("replay", *options).returncode == 0
    assert [json.loads(record.value) for record in workspace.consume("clicks")] == rows


def num_records(address: str, topic: str) -> int:
    """Return where a topic's partitions end, added up."""
    with Admin(KafkaConfig(bootstrap_servers=address), patient=True) as admin:
        return sum(admin.end_offsets(admin.require_topic(topic)).values())
