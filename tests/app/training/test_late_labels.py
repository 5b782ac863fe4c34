"""Labels whose events come after the window, from two topics to versions: as the finished samples are learned."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from springtide.app.config.load import Config
from springtide.app.tools.evaluate.evaluation import Evaluation
from springtide.app.training.config import GateConfig
from springtide.app.training.gate import Gate
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.commands.queue import submit_command
from springtide.stream.columns import Batch, Columns, RawRecords
from springtide.stream.consumer_loop import SourceStatus
from springtide.stream.decode.decoder import Decoder
from springtide.stream.join.label_join import LabelJoin
from springtide.stream.join_state import FIRST, LATE
from springtide.stream.negatives import RowSampling
from springtide.stream.positions import Partition
from springtide.stream.source import Source
from springtide_client.features import Features
from springtide_client.system.clock import wall_ms
from tests.app.training.trainer_env import TrainerEnv, records
from tests.stream.join.batch_join import Label, Record, batch_join
from tests.support.config import config_in
from tests.support.kafka import produce
from tests.support.scale import IS_LONG

PATH = Path(__file__).parents[4] / "shared" / "data" / "talkingdata-100k.parquet"
NUM_ROWS = 100_000 if IS_LONG else 12_000
WINDOW_MS, UNTIL_MS = 600_000, 46_320_000
FIELDS = ("ip", "app", "device", "os", "channel")
SETTINGS = {
    "source": {"topic": "impressions"},
    "schema": {"label": "install", "timestamp": "ts", "categorical": list(FIELDS), "dense": []},
    "join": {"key": ["request"], "lateness_seconds": 1, "early_seconds": 0, "idle_seconds": 0.2},
    "labels": {
        "install": {"topic": "installs", "window_seconds": WINDOW_MS / 1000, "until_seconds": UNTIL_MS / 1000},
    },
    "table": {"device_bytes": "64MiB"},
    "train": {"batch_size": 4096, "max_wait_seconds": 0.05, "threads": 1},
}


class FinishedSamples(Source):
    """Columns that a test has made, one after another."""

    def __init__(self, parts: Sequence[Columns]) -> None:
        self.status, self._parts = SourceStatus("impressions", is_connected=True), list(parts)
        self.num_rows, self.fraction = 0, 1.0

    def start(self) -> None: ...

    def stop_at_end(self) -> None: ...

    def close(self) -> None: ...

    def poll(self, timeout_seconds: float) -> list[Columns]:
        del timeout_seconds
        parts, self._parts = self._parts[:1], self._parts[1:]
        self.num_rows += sum(map(len, parts))
        return parts

    @property
    def finished(self) -> bool:
        return not self._parts

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._parts))

    def end_offsets(self) -> dict[Partition, int]:
        return {}


def finished_samples(config: Config, messages: Sequence[bytes], events: Sequence[tuple[int, int]]) -> Columns:
    """What impressions and events (number of an impression, ms) are learned as, by the definition of the join."""
    assert config.join is not None
    partition, (label,) = Partition("impressions", 0), config.join.labels
    raw = RawRecords.from_messages(partition, messages)
    rows = Decoder(config.schema, config.source, key=("request",)).decode(raw, wall_ms())
    keys, times = rows.key_hash_N.tolist(), rows.event_ms_N.tolist()
    shown = [Record("impression", key, ms) for key, ms in zip(keys, times, strict=True)]
    clicks = [Record("install", keys[n], ms) for n, ms in events]
    samples, refused = batch_join(
        {("imp", 0): shown, ("installs", 0): clicks},
        {"install": Label("install", label.window_ms, until_ms=label.until_ms, late=label.late)},
        lateness_ms=round(1000 * config.join.config.lateness_seconds),
        early_ms=0,
        dedupe_ms=0,
    )
    assert not any(refused[reason] for reason in ("late", "no_key", "duplicate"))
    end_ms = times[-1] - 1000  # the last record only passes the time
    samples = [sample for sample in samples if sample[0] < end_ms]
    columns = rows.take(np.array([sample[4] for sample in samples]))
    shares = np.array([sample[8][0] if sample[8] else np.nan for sample in samples], np.float32)
    return replace(
        columns,
        offset_N=np.arange(len(samples)),
        labels_NL=np.array([sample[7] for sample in samples], np.float32),
        grade_N=np.array([sample[6] for sample in samples], np.uint8),
        shares_NL=shares[:, None] if label.is_weighed else None,
    )


@pytest.mark.parametrize("rule", ["scale", "settle", "importance_weighted", "ignore"])
def test_two_topics_are_learned_as_the_finished_samples_are(env: TrainerEnv, rule: str) -> None:
    if not PATH.exists():
        pytest.skip(f"{PATH} is not here: real logs are not included")
    log = pq.read_table(PATH).slice(0, NUM_ROWS)
    shown, installed = log["ts"].to_pylist(), log["attributed_ts"].to_pylist()
    features = [log[name].to_pylist() for name in FIELDS]
    messages = [
        json.dumps({"request": n, "ts": ms} | dict(zip(FIELDS, values, strict=True))).encode()
        for n, (ms, *values) in enumerate(zip(shown, *features, strict=True))
    ]
    end_ms = shown[-1] + UNTIL_MS + 10_000
    messages.append(json.dumps({"request": -1, "ts": end_ms}).encode())
    events = sorted(((n, ms) for n, ms in enumerate(installed) if ms is not None), key=lambda event: event[1])
    clicks = [{"request": n, "ts": ms} for n, ms in events] + [{"request": -2, "ts": end_ms}]

    env.configure(SETTINGS, {"labels": {"install": {"late": rule}}})
    produce(env.broker.address, "impressions", messages)
    produce(env.broker.address, "installs", [json.dumps(click).encode() for click in clicks])
    status = Trainer(env.config, until_end=True).run()

    columns = finished_samples(env.config, messages, events)
    num_first = int((columns.grade_N == FIRST).sum())
    assert num_first == NUM_ROWS
    evaluation = Evaluation(env.config, FinishedSamples([columns]))  # type: ignore[arg-type]
    evaluation.run()
    expected = evaluation.state.scores.document()["whole"]
    evaluation.close()
    found = status.scores.whole
    assert status.dead_letters == {}
    assert status.samples_trained == len(columns)
    assert status.join.late + status.join.settled == len(columns) - num_first
    assert (status.join.settled, status.join.late > 0) == (
        NUM_ROWS if rule == "settle" else 0,
        rule == "importance_weighted",
    )
    assert found.auc == pytest.approx(expected["auc"], abs=1e-3)
    assert found.logloss == pytest.approx(expected["logloss"], abs=1e-4)

    num_within = sum(ms - shown[n] <= WINDOW_MS for n, ms in events)
    shares = env.view().meta.label_shares
    if rule == "scale":
        assert shares["install"] == pytest.approx(num_within / len(events), abs=0.02)
    else:
        assert shares == {}


NUM_SHOWN, STEP_MS, SHORT_MS, LONG_MS = 60_000, 100, 60_000, 600_000
SIMULATED = {
    "name": "test",
    "source": {"topic": "impressions"},
    "schema": {"label": "click", "timestamp": "ts", "categorical": ["user_id"], "dense": []},
    "join": {"key": ["request"], "lateness_seconds": 1, "early_seconds": 0},
    "labels": {"click": {"topic": "clicks", "window_seconds": SHORT_MS / 1000, "until_seconds": LONG_MS / 1000}},
    "train": {"batch_size": 1024, "threads": 1},
}
RATES = np.array([0.1, 0.2, 0.3, 0.6])  # of clicks, by user


class SimulatedStream(FinishedSamples):
    """Impressions of four users through the join; of the clicks a known share comes within the window."""

    def __init__(self, config: Config, share_N: np.ndarray) -> None:
        super().__init__([])
        assert config.join is not None
        self.random = np.random.default_rng(7)
        self.user_N = self.random.integers(0, len(RATES), NUM_SHOWN)
        self.shown_N = 1_700_000_000_000 + STEP_MS * np.arange(NUM_SHOWN)
        clicked = np.flatnonzero(self.random.random(NUM_SHOWN) < RATES[self.user_N])
        is_within = self.random.random(len(clicked)) < share_N[clicked]
        delay = np.where(
            is_within,
            self.random.integers(0, SHORT_MS, len(clicked)),
            self.random.integers(SHORT_MS + 1, LONG_MS, len(clicked)),
        )
        self.events = sorted(zip((self.shown_N[clicked] + delay).tolist(), (clicked + 1).tolist(), strict=True))
        self.empty = Columns.empty(config.schema)
        self.is_sampled = config.negatives is not None
        self.join = LabelJoin(
            config.join.labels,
            num_labels=1,
            lateness_ms=1000,
            early_ms=0,
            dedupe_ms=0,
            impressions="impressions",
            empty=self.empty,
        )
        self._pieces = np.array_split(np.arange(NUM_SHOWN), 60)
        self._is_at_end = False

    def columns_of(self, topic: str, offset_N: np.ndarray, key_N: np.ndarray, ms_N: np.ndarray, ids: np.ndarray):
        num, partition = len(offset_N), Partition(topic, 0)
        return replace(
            self.empty,
            features=Features(ids[:, None].astype(np.int64), (), np.zeros((num, 0), np.float32)),
            labels_NL=np.full((num, 1), np.nan, np.float32),
            weights_N=np.ones(num, np.float32),
            event_ms_N=ms_N.astype(np.int64),
            record_ms_N=ms_N.astype(np.int64),
            partition_N=np.zeros(num, np.int32),
            offset_N=offset_N,
            partitions=(partition,),
            end_offsets={partition: int(offset_N[-1]) + 1},
            key_hash_N=key_N.astype(np.uint64),
            sampled=RowSampling(np.ones(num, np.float32), key_N.astype(np.uint64)) if self.is_sampled else None,
        )

    def poll(self, timeout_seconds: float) -> list[Columns]:
        del timeout_seconds
        if not self._pieces:
            return []
        rows = self._pieces.pop(0)
        until_ms = int(self.shown_N[rows[-1]])
        for look in self.join.looks:
            self.join.add_impressions(
                look, self.columns_of("impressions", rows, rows + 1, self.shown_N[rows], self.user_N[rows])
            )
        due = [event for event in self.events if event[0] <= until_ms] + [(until_ms, NUM_SHOWN + 7)]
        self.events = [event for event in self.events if event[0] > until_ms]
        self.num_rows += len(due)
        ms_N, key_N = (np.array(column) for column in zip(*due, strict=True))
        offset_N = np.arange(self.num_rows - len(due), self.num_rows)
        events = self.columns_of("clicks", offset_N, key_N, ms_N, np.zeros(len(due)))
        self.join.add_events("clicks", events, {0: (np.ones(len(due), bool), np.ones(len(due), np.float32))})
        columns = self.join.take(1 << 30)
        return [] if columns is None else [columns]

    @property
    def finished(self) -> bool:
        return not self._pieces


@pytest.mark.parametrize("drifts", [False, True], ids=["steady", "drifting"])
def test_the_share_is_known_and_scale_is_calibrated(tmp_path: Path, drifts: bool) -> None:
    config = config_in(tmp_path, SIMULATED)
    share_N = np.linspace(0.8, 0.4, NUM_SHOWN) if drifts else np.full(NUM_SHOWN, 0.6)
    stream = SimulatedStream(config, share_N)
    evaluation = Evaluation(config, stream)  # type: ignore[arg-type]
    found: list[tuple[float, float]] = []  # F, and b over the true rate

    def note(evaluation: Evaluation) -> None:
        state = evaluation.state
        if state.samples_trained > NUM_SHOWN // 2:
            report = state.scores.window_of_label(0)
            found.append((state.label_shares()["click"], float(report.probabilities_N[-1024:].mean())))

    evaluation.run(note)
    share = evaluation.state.label_shares()["click"]
    evaluation.close()
    # those that are settled lie between two horizons before the end and one; the last 2,000 positives count
    last = NUM_SHOWN - LONG_MS // STEP_MS
    expected = share_N[last - int(2000 / RATES.mean()) : last].mean()
    assert abs(share - expected) < 3 * np.sqrt(expected * (1 - expected) / 2000) + (0.02 if drifts else 0)
    if not drifts:
        served = np.mean([within / share for share, within in found])
        assert served == pytest.approx(RATES.mean(), rel=0.02)


@pytest.mark.parametrize("rule", ["scale", "settle", "importance_weighted"])
def test_predictions_stay_true_where_negatives_are_dropped(tmp_path: Path, rule: str) -> None:
    config = config_in(tmp_path, SIMULATED, {"labels": {"click": {"late": rule}}, "negatives": {"rate": 0.25}})
    evaluation = Evaluation(config, SimulatedStream(config, np.full(NUM_SHOWN, 0.6)))  # type: ignore[arg-type]
    found: list[float] = []  # of samples scored, by the share of clicks that is known within the window

    def note(evaluation: Evaluation) -> None:
        state = evaluation.state
        if state.samples_trained > 20_000:
            report = state.scores.window_of_label(0)
            mean = np.average(report.probabilities_N[-1024:], weights=report.weights_N[-1024:])
            found.append(float(mean) / (state.label_shares()["click"] if rule == "scale" else 1.0))

    evaluation.run(note)
    assert evaluation.state.stream.num_dropped > NUM_SHOWN / 4
    evaluation.close()
    assert np.mean(found) == pytest.approx(RATES.mean(), rel=0.03)


def test_a_burst_of_late_positives_does_not_trip_the_gate(tmp_path: Path) -> None:
    config = config_in(tmp_path, SIMULATED, {"labels": {"click": {"late": "importance_weighted"}}})
    evaluation = Evaluation(config, SimulatedStream(config, np.full(NUM_SHOWN, 0.6)))  # type: ignore[arg-type]
    evaluation.run(lambda evaluation: evaluation.num_samples > 20_000)
    state = evaluation.state
    gate = Gate(GateConfig(calibration_ratio=1.5, logloss_ratio=1.5), config.train.window_samples)
    gate.reset(1, state.learner, 0)
    assert gate.judge(state.learner, state.scores, state.samples_trained) is None
    gate.on_published(2, state.learner, state.samples_trained)
    num_scored = state.scores.num_samples
    num = 3000
    burst = Batch(
        features=Features(np.resize(np.arange(4), num)[:, None], (), np.zeros((num, 0), np.float32)),
        labels_NL=np.ones((num, 1), np.float32),
        weights_N=np.ones(num, np.float32),
        event_ms_N=np.full(num, state.stream.clock.now_ms),
        record_ms_N=np.full(num, state.stream.clock.now_ms),
        positions={},
        shares_NL=np.full((num, 1), 0.6, np.float32),
    )
    state.learn(replace(burst, grade_N=np.full(num, LATE, np.uint8)))
    assert gate.judge(state.learner, state.scores, state.samples_trained) is None
    assert state.scores.num_samples == num_scored
    assert state.stream.num_late >= num
    evaluation.close()


@pytest.mark.parametrize("rule", ["scale", "importance_weighted"])
def test_a_rollback_restores_the_share_of_events_within_the_window_of_its_version(env: TrainerEnv, rule: str) -> None:
    """A half of the clicks are late at first, then nine of ten; both halves are learned, undone, and learned again."""
    env.configure(SIMULATED, {"source": {"topic": "impressions"}, "labels": {"click": {"late": rule}}})

    def send(first: int, num: int, late: float) -> None:
        draw = np.random.default_rng(first)
        shown = [
            {"request": n, "user_id": n % 4, "ts": 1_600_000_000_000 + n * STEP_MS} for n in range(first, first + num)
        ]
        clicks = []
        for impression in shown[::3]:
            delay_ms = 2 * SHORT_MS if draw.random() < late else SHORT_MS // 2
            clicks.append({"request": impression["request"], "ts": impression["ts"] + delay_ms})
        clicks.sort(key=lambda click: click["ts"])
        end_ms = shown[-1]["ts"] + 2 * LONG_MS  # passes all windows
        for topic, rows in (("impressions", shown), ("clicks", clicks)):
            passing = {"request": -first - 1, "user_id": 0, "ts": end_ms}
            produce(env.broker.address, topic, [json.dumps(row).encode() for row in (*rows, passing)])

    send(0, 6000, late=0.5)
    Trainer(env.config, until_end=True).run()
    goal = records(env)[-1]
    then = goal.meta.trainer["join"]
    send(30_000, 6000, late=0.9)
    Trainer(env.config, until_end=True).run()
    before = records(env)[-1].meta
    assert before.trainer["join"] != then
    command = submit_command(env.config.log.path, "rollback", {"version": goal.number})
    status = Trainer(env.config, until_end=True).run()
    (back,) = [record.meta for record in records(env) if record.meta.restores]
    assert command in {entry.id for entry in back.executed_commands}
    assert back.samples_trained == goal.meta.samples_trained
    assert back.trainer["join"] == then
    assert back.label_shares == goal.meta.label_shares
    after = records(env)[-1].meta
    assert (after.samples_trained, after.label_shares) == (before.samples_trained, before.label_shares)
    assert status.dead_letters == {}
    if rule == "scale":
        assert goal.meta.label_shares["click"] == pytest.approx(0.5, abs=0.05)
        assert after.label_shares["click"] < 0.4
