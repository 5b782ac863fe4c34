"""MovieLens-100k for the bench of retrieval: learned in its order, in one pass."""

from dataclasses import replace

from springtide.app.training.state.training_state import TrainingState
from springtide.app.version_log.write.writer import LogWriter
from springtide.stream.positions import Partition
from tests.bench.harness.report import DATA
from tests.bench.quality.real_logs import SETS, read_batch
from tests.support.batches import cut
from tests.support.config import Section

LOG = SETS["movielens-100k"]
PATH = DATA / f"{LOG.file}.parquet"
NUM_USERS, BATCH = 200, 256
USER_FIELDS = ("user_id", "gender", "occupation", "zip_code", "age")
SETTINGS: Section = {
    "schema": {name: getattr(LOG, name) for name in ("timestamp", "categorical", "multi_value", "dense")},
    "table": {"device_bytes": "256MiB"},
    "model": {"options": {"item": ["item_id", "genres", "release_year"]}},
}


def learn_ratings(state: TrainingState, log: LogWriter) -> None:
    """Learn all ratings, and publish one version."""
    batch = read_batch(DATA, LOG)
    for start in range(0, len(batch), BATCH):
        part = cut(batch, start, start + BATCH)
        state.learn(replace(part, positions={Partition("ratings", 0): start + len(part)}))
    log.append(*state.checkpoint(created_ms=1, complete_until_ms=1))
    log.sync()


def users() -> list[dict[str, object]]:
    """Return the fields of some users."""
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(PATH).select(USER_FIELDS).to_pylist()
    by_id = {row["user_id"]: row for row in rows}
    return [by_id[user] for user in sorted(by_id)[:NUM_USERS]]
