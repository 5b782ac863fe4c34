"""The join equals its definition for any logs, interleavings, idle marks and kills: samples, order, refusals."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.stream.columns import NO_KEY, Columns
from springtide.stream.join import held_impressions, partition_clock
from springtide.stream.join.config import JoinedLabel, Release
from springtide.stream.join.held_bytes import HeldBytes
from springtide.stream.join.label_join import LabelJoin
from springtide.stream.join_state import EventCount, JoinState, WindowShare
from springtide.stream.positions import ALL_PARTITIONS, Partition, PartitionShare
from springtide_client.features import Features, Ragged
from springtide_client.schema import Schema
from tests.stream.join.batch_join import FIRST, Label, Log, Record, batch_join, cursor_of
from tests.support.scale import NUM_EXAMPLES

SCHEMA = Schema(labels=("click", "order", "dwell"), categorical=("id",))
LABELS = {"click": Label("click", 200), "order": Label("order", 700, "count"), "dwell": Label("dwell", 200, "sum")}
# with every rule, and looks of several labels at one time
LATE_LABELS = (
    {**LABELS, "click": Label("click", 200, until_ms=700, late="importance_weighted")},
    {**LABELS, "click": Label("click", 200, until_ms=500, late="settle"), "order": Label("order", 500, "count")},
    {
        "click": Label("click", 100, until_ms=350, late="settle"),
        "order": Label("order", 350, "any", until_ms=900, late="ignore"),
        "dwell": Label("dwell", 60, "sum", until_ms=350, late="scale"),
    },
    {
        "click": Label("click", 40, until_ms=200, late="importance_weighted"),
        "order": Label("order", 40, "any", until_ms=200, late="importance_weighted"),
        "dwell": Label("dwell", 200, "max", until_ms=350, late="scale"),
    },
    # held for two labels of one window, until two times
    {
        "click": Label("click", 40, until_ms=200, late="importance_weighted"),
        "order": Label("order", 40, until_ms=900, late="importance_weighted"),
        "dwell": Label("dwell", 40, "any", until_ms=350, late="settle"),
    },
    # of two windows, one of which is held at the end of the other
    {
        "click": Label("click", 40, until_ms=200, late="importance_weighted"),
        "order": Label("order", 200, until_ms=700, late="importance_weighted"),
        "dwell": Label("dwell", 200, "sum", until_ms=700, late="scale"),
    },
)
EARLY_LABELS = {"click": Label("click", 200), "order": Label("order", 700)}  # learned at their events
LATENESS_MS, EARLY_MS, DEDUPE_MS, END_MS = 50, 5, 20, 10**6


def random_logs(
    rng: random.Random, num_impressions: int = 120, *, keys_come_again: bool = True, num_partitions: int = 2
) -> Log:
    """Duplicates, disorder, late records, missing keys, events before their impression, keys that come again.

    With more than two partitions of impressions a key is always in the same one.
    """
    rows = []
    for i in range(num_impressions):
        ms, key = 10 * i + rng.randrange(10), 1 + rng.randrange(num_impressions // 2) * 7 + i % 7
        key = key if keys_come_again else 1 + i
        rows.append(Record("impression", key if rng.random() > 0.02 else None, ms))
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
            rows.append(Record("click", key, ms + rng.choice((-3, 5, 40, 199, 200, 201, 350))))
            rows.append(Record("dwell", key, rows[-1].ms + rng.randrange(9), float(rng.randrange(1, 50))))
        rows += [Record("order", key, ms + rng.randrange(900), 1.0)] * (rng.random() < 0.2)
        rows += [rows[-1]] * (rng.random() < 0.2)
    return in_partitions(rng, rows, num_partitions)


def in_partitions(rng: random.Random, rows: Sequence[Record], num_partitions: int = 2) -> Log:
    """Records in the order of their times, but for a disorder that makes few of them late."""
    logs: Log = {("imp", p): [] for p in range(num_partitions)} | {("evt", p): [] for p in range(3)}
    for row in sorted(rows, key=lambda row: row.ms + rng.random() * (120 if rng.random() < 0.05 else 40)):
        topic, num = ("imp", num_partitions) if row.kind == "impression" else ("evt", 3)
        by_key = topic == "imp" and num > 2 and row.key is not None
        logs[topic, row.key % num if by_key else rng.randrange(num)].append(row)
    return {p: [*log, Record("end", 0xE5D, END_MS)] for p, log in logs.items()}


def columns_of(partition: tuple[str, int], start: int, records: list[Record]) -> Columns:
    num = len(records)
    rows = Columns.empty(SCHEMA)
    ms_N = np.array([record.ms for record in records], np.int64)
    return Columns(
        features=type(rows.features)(np.arange(start, start + num)[:, None], (), np.zeros((num, 0), np.float32)),
        labels_NL=np.full((num, 3), np.nan, np.float32),
        weights_N=np.ones(num, np.float32),
        event_ms_N=ms_N,
        record_ms_N=ms_N,
        partition_N=np.zeros(num, np.int32),
        offset_N=np.arange(start, start + num),
        partitions=(Partition(*partition),),
        dead_letters=(),
        end_offsets={Partition(*partition): start + num},
        id_strings=rows.id_strings,
        topic_ids={Partition(*partition): "topic"},
        key_hash_N=np.array([NO_KEY if record.key is None else record.key for record in records], np.uint64),
    )


@st.composite
def late_labels(draw: st.DrawFn) -> dict[str, Label]:
    """Three labels with any rules, whose windows and ends are often the same."""
    times = sorted(draw(st.sets(st.integers(1, 800), min_size=2, max_size=4)))
    labels = {}
    for kind in LABELS:
        window_ms, until_ms = sorted((draw(st.sampled_from(times)), draw(st.sampled_from(times))))
        late = draw(st.sampled_from(("importance_weighted", "importance_weighted", "settle", "scale", "ignore")))
        value = "any" if late in ("importance_weighted", "settle") else draw(st.sampled_from(("any", "sum", "last")))
        labels[kind] = Label(kind, window_ms, value, until_ms, late)
    return labels


@st.composite
def shown_and_clicked(draw: st.DrawFn, labels: dict[str, Label]) -> list[Record]:
    """Impressions of few keys, with events at any time and at the ends of windows, some of them twice."""
    ends = {at for label in labels.values() for at in (label.window_ms, label.until_ms)} | {-EARLY_MS}
    delays = st.one_of(st.sampled_from(sorted({at + d for at in ends for d in (-1, 0, 1)})), st.integers(-9, 900))
    events = st.lists(st.tuples(st.sampled_from(sorted(LABELS)), delays, st.integers(1, 9)), max_size=4)
    times_shown = st.sampled_from((1, 1, 1, 2))
    shown = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9), events, times_shown))
    rows, ms = [], 0
    for gap, key, clicked, times in draw(shown):
        ms += gap
        rows += [Record("impression", key, ms)] * times
        rows += [Record(kind, key, ms + delay, float(value)) for kind, delay, value in clicked for _ in range(times)]
    return rows


class Reader:
    """Reads logs through a join, and is killed and started again from a version."""

    def __init__(
        self,
        logs: Log,
        state: JoinState | None = None,
        labels_of: dict[str, Label] = LABELS,
        *,
        share: PartitionShare = ALL_PARTITIONS,
        held: HeldBytes | None = None,
        release: Release = "window",
        lateness_ms: int = LATENESS_MS,
    ) -> None:
        self.logs, self.labels_of = logs, labels_of
        labels = [
            JoinedLabel(column, "evt", label.window_ms, label.value, name, label.until_ms, label.late)
            for column, (name, label) in enumerate(labels_of.items())
        ]
        self.join = LabelJoin(
            labels,
            num_labels=3,
            lateness_ms=lateness_ms,
            early_ms=EARLY_MS,
            dedupe_ms=DEDUPE_MS,
            impressions="imp",
            empty=Columns.empty(SCHEMA),
            state=None if state is None else msgspec.json.decode(msgspec.json.encode(state), type=JoinState),
            share=share,
            held=held,
            release=release,
        )
        self.at = {
            (cursor, p): 0 for cursor in self.join.cursors for p in logs if cursor.startswith("imp") == (p[0] == "imp")
        }
        for cursor in self.join.cursors:
            for partition, mark in self.join.partition_marks(cursor).items():
                self.at[cursor, tuple(partition)] = max(0, mark.replay_offset)
        for cursor in self.join.cursors:
            self.join.set_partitions(cursor, [Partition(*p) for name, p in self.at if name == cursor])

    def unread(self) -> list[tuple[str, tuple[str, int]]]:
        return [place for place, offset in self.at.items() if offset < len(self.logs[place[1]])]

    def read(self, place: tuple[str, tuple[str, int]], num: int) -> None:
        cursor, partition = place
        start = self.at[place]
        records = self.logs[partition][start : start + num]
        self.at[place] += len(records)
        columns = columns_of(partition, start, records)
        if cursor == "evt":
            values_N = np.array([record.value for record in records], np.float32)
            kinds = np.array([record.kind for record in records])
            of_label = {n: (kinds == label.kind, values_N) for n, label in enumerate(self.labels_of.values())}
            self.join.add_events("evt", columns, of_label)
        else:
            (look,) = (look for look in self.join.looks if self.join.cursor_name(look) == cursor)
            self.join.add_impressions(look, columns)


def rows_of(columns: Columns) -> list[tuple[Any, ...]]:
    rows = []
    for n in range(len(columns)):
        place = columns.joined.places_N.at(n)
        values = tuple(value for value in columns.labels_NL[n].tolist() if not np.isnan(value))
        assert int(columns.features.categorical_NC[n, 0]) == place.offset  # the impression's own features
        shares = () if columns.shares_NL is None else tuple(x for x in columns.shares_NL[n].tolist() if not np.isnan(x))
        rows.append((*place, values, shares))
    return rows


class Learned(NamedTuple):
    """What a trainer has learned and refused."""

    samples: list[Any]
    dead_letters: Counter[tuple[str, Partition, int]]
    floors: dict[Any, int]  # as `batch_join` has them
    events: dict[str, EventCount]  # by label, in the end
    shares: dict[str, WindowShare]

    def add(self, columns: Columns, num: int) -> None:
        """Learn the first rows of columns, and send all their dead letters."""
        self.samples.extend(rows_of(columns)[:num])
        self.dead_letters.update((letter.reason, letter.partition, letter.offset) for letter in columns.dead_letters)
        state = columns.joined.state_after(num)
        self.shares.update(state.shares)
        for name, marks in state.cursors.items():
            for partition, mark in marks.items():
                self.floors.update({(name, tuple(Partition.parse(partition)), at): ms for at, ms in mark.floors})

    def extend(self, more: "Learned") -> None:
        """What a version makes durable."""
        self.samples.extend(more.samples)
        self.dead_letters.update(more.dead_letters)
        self.floors.update(more.floors)
        self.shares.update(more.shares)


def learn(
    rng: random.Random,
    logs: Log,
    *,
    kills: float,
    idles: float,
    cuts: float = 0.1,
    labels: dict[str, Label] = LABELS,
    scratch: Path | None = None,
    release: Release = "window",
) -> tuple[Learned, Counter[str]]:
    """Learn from logs, in any interleaving, marking partitions idle at random, and being killed at random.

    `scratch`: memory has room for nothing, everything that is held is in files of this folder.
    """

    def start(state: JoinState | None) -> Reader:
        held = HeldBytes() if scratch is None else HeldBytes(0, 1 << 30, scratch)
        return Reader(logs, state, labels, held=held, release=release)

    reader, state, learned = start(None), None, Learned([], Counter(), {}, {}, {})
    happened = Counter[str]()
    pending = Learned([], Counter(), {}, {}, {})  # since the newest version
    while True:
        if rng.random() < kills and reader.unread():  # an event is counted with what is released after it
            happened["kills"] += 1
            reader, pending = start(state), Learned([], Counter(), {}, {}, {})
        unread = reader.unread()
        if unread:
            reader.read(rng.choice(unread), rng.randrange(1, 40 if reader.join.is_replaying else 9))
        if rng.random() < idles:
            cursor, partition = rng.choice(list(reader.at))
            if reader.join.next_offset(cursor, Partition(*partition)) > 0:
                reader.join.mark_idle(cursor, [Partition(*partition)])
                happened["idles"] += 1
        columns = reader.join.take(rng.choice((1, 5, 10**6)))
        if columns is not None:
            stop = rng.randrange(len(columns) + 1) if rng.random() < cuts else len(columns)
            pending.add(columns, stop)
            if stop < len(columns) or rng.random() < 0.1 or not unread:
                state = columns.joined.state_after(stop)
                learned.extend(pending)
                pending = Learned([], Counter(), {}, {}, {})
                if stop < len(columns):  # the rest is lost with the process
                    happened["cuts"] += 1
                    reader = start(state)
        elif not unread and not reader.join.is_replaying:
            learned.extend(pending)
            for name, cursor in reader.join._cursors.items():  # of what came too late to be of any sample, too
                for partition, clock in cursor.clocks.items():
                    learned.floors.update({(name, tuple(partition), at): ms for at, ms in clock.floors.items()})
            learned.events.update(reader.join.values.event_counts)
            happened["on_disk"] = reader.join.held.disk_used
            return learned, happened


def require_as_defined(
    seed: int,
    labels: dict[str, Label],
    scratch: Path,
    *,
    release: Release = "window",
    rows: Sequence[Record] | None = None,
) -> Counter[str]:
    """Learn `rows`, or the random logs of a seed, and require what the definition says; return what happened."""
    rng = random.Random(seed)
    logs = random_logs(rng) if rows is None else in_partitions(rng, rows)
    folder = scratch if seed % 4 == 3 else None
    learned, happened = learn(
        rng, logs, kills=0.03, idles=0.05 * (seed % 2), labels=labels, scratch=folder, release=release
    )
    shares: dict[str, float] = {}
    want, refused = batch_join(
        logs,
        labels,
        lateness_ms=LATENESS_MS,
        early_ms=EARLY_MS,
        dedupe_ms=DEDUPE_MS,
        release=release,
        floors=learned.floors,
        last_shares=shares,
    )
    want = [row for row in want if row[0] < END_MS - LATENESS_MS]
    rounded = [(*row[:-1], tuple(float(np.float32(share)) for share in row[-1])) for row in want]
    assert learned.samples == rounded, f"schedule {seed}: {len(learned.samples)} samples, {len(want)} by definition"
    first = cursor_of(labels, min(label.window_ms for label in labels.values()), FIRST)
    letters = Counter(
        (reason, Partition(*p), at)
        for reason in ("no_key", "late")
        for cursor, p, at in refused[reason]
        if (reason == "late" and not cursor.endswith(("-settled", "-counted"))) or cursor in (first, "evt")
    )
    assert learned.dead_letters == letters, f"schedule {seed}"
    assert {name: share.share for name, share in learned.shares.items()} == shares
    happened.update(samples=len(want), late=len(refused["late"]), duplicates=len(refused["duplicate"]))
    happened.update(f"grade {row[6]}" for row in want)
    return happened


@pytest.mark.parametrize(("release", "labels"), [("window", LABELS), ("event", EARLY_LABELS)])
def test_random_schedules_with_kills_equal_the_definition(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: Release, labels: dict[str, Label]
) -> None:
    monkeypatch.setattr(partition_clock, "POINT_RECORDS", 4)
    monkeypatch.setattr(held_impressions, "MERGED_CHUNKS", 5)
    happened: Counter[str] = Counter()
    for seed in range(NUM_EXAMPLES or 8):
        happened += require_as_defined(seed, labels, tmp_path, release=release)
    assert min(happened.values()) > 5, happened


def test_late_events_are_learned_as_defined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Any labels, rules, windows, events, duplicates and schedules with kills; first the labels of LATE_LABELS."""
    monkeypatch.setattr(partition_clock, "POINT_RECORDS", 4)
    monkeypatch.setattr(held_impressions, "MERGED_CHUNKS", 5)
    happened: Counter[str] = Counter()
    for seed in range(NUM_EXAMPLES or len(LATE_LABELS)):
        happened += require_as_defined(seed, LATE_LABELS[seed % len(LATE_LABELS)], tmp_path)
    assert happened.keys() >= {"kills", "idles", "cuts", "grade 0", "grade 1", "grade 2"}
    assert min(happened.values()) > 5, happened

    @settings(max_examples=NUM_EXAMPLES or 40, deadline=None)
    @given(st.data(), late_labels(), st.integers(0, 1 << 32))
    def learn_anything(data: st.DataObject, labels: dict[str, Label], seed: int) -> None:
        require_as_defined(seed, labels, tmp_path, rows=data.draw(shown_and_clicked(labels)))

    learn_anything()


@pytest.mark.parametrize(("kills", "keys_come_again"), [(0.0, True), (0.05, False)])
def test_events_without_an_impression_are_counted_once_through_kills(kills: float, keys_come_again: bool) -> None:
    happened: Counter[str] = Counter()
    for seed in range(NUM_EXAMPLES or 8):
        rng = random.Random(seed)
        logs = random_logs(rng, keys_come_again=keys_come_again)
        for log in (log for (topic, _), log in logs.items() if topic == "imp"):
            del log[3:20:4]  # their events have none
        learned, happened_now = learn(rng, logs, kills=kills, idles=0.0, cuts=2 * kills)
        _, refused = batch_join(
            logs, LABELS, lateness_ms=LATENESS_MS, early_ms=EARLY_MS, dedupe_ms=DEDUPE_MS, floors=learned.floors
        )
        want = Counter(name for name, _, _ in refused["unmatched"])
        assert {name: count.num_unmatched for name, count in learned.events.items()} == want, f"schedule {seed}"
        assert all(count.num_matched == 0 for count in learned.events.values())
        happened += happened_now + want
    assert min(happened[name] for name in LABELS) > 5, happened
    assert (happened["kills"] > 5) == (kills > 0)


@pytest.mark.parametrize("lateness_ms", [5, 150])
def test_with_another_lateness_what_follows_is_decided_by_it(lateness_ms: int) -> None:
    rng = random.Random(5)
    logs = random_logs(rng)
    reader, learned = Reader(logs), Learned([], Counter(), {}, {}, {})
    while len(learned.samples) < 100:
        reader.read(rng.choice(reader.unread()), rng.randrange(1, 9))
        if (columns := reader.join.take()) is not None:
            learned.add(columns, len(columns))
            state = columns.joined.state_after(len(columns))
    again = Reader(logs, state, lateness_ms=lateness_ms)
    after = Learned([], Counter(), {}, {}, {})
    while again.unread():
        again.read(rng.choice(again.unread()), rng.randrange(1, 9))
        if (columns := again.join.take()) is not None:
            after.add(columns, len(columns))
    rules: dict[str, Any] = {"lateness_ms": lateness_ms, "early_ms": EARLY_MS, "dedupe_ms": DEDUPE_MS}
    want, _ = batch_join(logs, LABELS, floors=after.floors, **rules)
    assert after.samples == [row for row in want if state.released < row[:7] and row[0] < END_MS - lateness_ms]
    assert len(after.samples) > 50


def test_the_order_of_samples_does_not_depend_on_the_interleaving() -> None:
    logs = random_logs(random.Random(7))
    one, other = (learn(random.Random(seed), logs, kills=0.0, idles=0.0)[0].samples for seed in (1, 2))
    assert one == other
    assert len(one) > 200


def test_held_lists_keep_their_weights_in_other_memory() -> None:
    schema = Schema(labels=("click",), categorical=("id",), multi_value=("tags", "kinds"), weighted=("kinds",))
    tags = Ragged(np.array([1, 2, 3]), np.array([0, 3, 3]))
    kinds = Ragged(np.array([4, 5]), np.array([0, 0, 2]), np.array([0.5, -2], np.float32))
    features = Features(np.zeros((2, 1), np.int64), (tags, kinds), np.zeros((2, 0), np.float32))
    columns = replace(Columns.empty(schema), features=features, key_hash_N=np.zeros(2, np.uint64))
    arrays = {name: array.copy() for name, array in held_impressions.columns_arrays(columns).items()}
    held = held_impressions.with_arrays(columns, arrays).features.lists
    assert held[0].weights_M is None
    assert held[1].weights_M is not None
    assert (held[1].ids_M.tolist(), held[1].weights_M.tolist()) == ([4, 5], [0.5, -2.0])
    assert held[1].weights_M is not kinds.weights_M
