"""Several joins share the partitions of impressions; after each kill another number of them goes on."""

import random
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest

from springtide.stream import join_state
from springtide.stream.join import partition_clock
from springtide.stream.join.handover import take_over
from springtide.stream.join_state import (
    BEGINNING,
    FIRST_PLACE,
    JoinState,
    PartitionMark,
    SamplePlace,
    WindowShare,
)
from springtide.stream.positions import Partition, PartitionShare
from tests.stream.join.batch_join import LATE, SETTLED, Label, Log, batch_join
from tests.stream.join.test_label_join import (
    DEDUPE_MS,
    EARLY_MS,
    END_MS,
    LABELS,
    LATE_LABELS,
    LATENESS_MS,
    Learned,
    Reader,
    random_logs,
)
from tests.support.scale import NUM_EXAMPLES

HELD_LABELS = [labels for labels in LATE_LABELS if any(label.holds_impressions for label in labels.values())]


class Rank:
    """One join, of its share of the impressions and of all events; and what it has learned since the version."""

    def __init__(
        self, logs: Log, version: JoinState | None, share: PartitionShare, labels: dict[str, Label] = LABELS
    ) -> None:
        own = {p: log for p, log in logs.items() if p[0] != "imp" or share.holds(Partition(*p))}
        self.state = None if version is None else take_over(version, share)
        self.has_partitions = any(topic == "imp" for topic, _ in own)
        if not self.has_partitions:
            self.state = JoinState(FIRST_PLACE, {})
        self.own = own
        self.reader = Reader(own, self.state, labels, share=share)
        self.pending = Learned([], Counter(), {}, {}, {})

    def step(self, rng: random.Random, *, idles: float) -> bool:
        """Read or learn a little; return False if nothing is left."""
        if not self.has_partitions:
            return False
        reader, unread = self.reader, self.reader.unread()
        if unread:
            reader.read(rng.choice(unread), rng.randrange(1, 40 if reader.join.is_replaying else 9))
        if rng.random() < idles:
            cursor, partition = rng.choice(list(reader.at))
            if reader.join.next_offset(cursor, Partition(*partition)) > 0:
                reader.join.mark_idle(cursor, [Partition(*partition)])
        columns = reader.join.take(rng.choice((1, 5, 10**6)))
        if columns is not None:
            self.state = columns.joined.state_after(len(columns))
            self.pending.add(columns, len(columns))
        return columns is not None or bool(unread)


def learn(
    rng: random.Random,
    logs: Log,
    *,
    kills: float,
    idles: float,
    labels: dict[str, Label] = LABELS,
    num_ranks: int | None = None,
) -> tuple[Learned, Counter[Any], JoinState, list[Learned]]:
    """Learn from logs with so many ranks as chance will have it after each kill, or always with `num_ranks`.

    Return also the last version, and what each of the last ranks has learned.
    """
    version: JoinState | None = None
    learned, happened = Learned([], Counter(), {}, {}, {}), Counter[Any]()
    of_ranks: list[Learned] = []

    def start() -> list[Rank]:
        happened[num := num_ranks or rng.randrange(1, 5)] += 1
        return [Rank(logs, version, PartitionShare(rank, num), labels) for rank in range(num)]

    ranks = start()
    while True:
        of_ranks += [Learned([], Counter(), {}, {}, {}) for _ in ranks[len(of_ranks) :]]
        goes_on = [rank.step(rng, idles=idles) for rank in rng.choices(ranks, k=rng.randrange(1, 12))]
        is_end = not any(goes_on) and not any(rank.step(rng, idles=0.0) for rank in ranks)
        if is_end or rng.random() < 0.3:
            version = JoinState.of_ranks([rank.state for rank in ranks])
            if version is not None:
                version = msgspec.convert(msgspec.json.decode(msgspec.json.encode(version)), JoinState)
            for rank, own in zip(ranks, of_ranks, strict=False):
                learned.extend(rank.pending)
                own.extend(rank.pending)
                rank.pending = Learned([], Counter(), {}, {}, {})
        if is_end:
            assert version is not None
            return learned, happened, version, of_ranks
        if rng.random() < kills:
            ranks = start()


def test_any_number_of_ranks_after_each_kill_learns_each_impression_once_with_its_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_clock, "POINT_RECORDS", 4)
    happened: Counter[Any] = Counter()
    for seed in range(NUM_EXAMPLES or 10):
        rng = random.Random(seed)
        logs = random_logs(rng, num_partitions=3)
        learned, happened_now, *_ = learn(rng, logs, kills=0.08, idles=0.0)
        want, refused = batch_join(logs, LABELS, lateness_ms=LATENESS_MS, early_ms=EARLY_MS, dedupe_ms=DEDUPE_MS)
        want = [row for row in want if row[0] < END_MS - LATENESS_MS]
        assert sorted(learned.samples) == want, f"schedule {seed}"
        letters = Counter(
            (reason, Partition(*p), at)
            for reason in ("no_key", "late")
            for cursor, p, at in refused[reason]
            if reason == "late" or cursor != "imp+700"
        )
        assert learned.dead_letters == letters, f"schedule {seed}"
        happened += happened_now
    assert min(happened[num] for num in (1, 2, 3, 4)) > 5, happened


def test_impressions_are_held_for_late_events_by_any_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their shares F are no part of what is taken over: such rules are for one rank."""
    monkeypatch.setattr(partition_clock, "POINT_RECORDS", 4)
    happened: Counter[Any] = Counter()
    for seed in range(NUM_EXAMPLES or 4):
        rng, labels = random.Random(seed), HELD_LABELS[seed % len(HELD_LABELS)]
        logs = random_logs(rng, num_partitions=3)
        learned, happened_now, *_ = learn(rng, logs, kills=0.08, idles=0.0, labels=labels)
        want, _ = batch_join(logs, labels, lateness_ms=LATENESS_MS, early_ms=EARLY_MS, dedupe_ms=DEDUPE_MS)
        want = [row for row in want if row[0] < END_MS - LATENESS_MS]
        assert sorted(row[:-1] for row in learned.samples) == [row[:-1] for row in want], f"schedule {seed}"
        happened += happened_now + Counter(f"grade {row[6]}" for row in want)
    assert min(happened[what] for what in (1, 2, 3, 4, f"grade {LATE}")) > 1, happened


def test_where_ranks_differ_in_what_was_idle_each_impression_is_learned_once_or_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_clock, "POINT_RECORDS", 4)
    num_late = 0
    for seed in range(NUM_EXAMPLES or 10):
        rng = random.Random(seed)
        logs = random_logs(rng, num_partitions=3)
        learned, *_ = learn(rng, logs, kills=0.08, idles=0.05)
        floors = {place: ms for place, ms in learned.floors.items() if place[0] != "evt"}  # which one rank decides
        want, refused = batch_join(
            logs,
            LABELS,
            lateness_ms=LATENESS_MS,
            early_ms=EARLY_MS,
            dedupe_ms=DEDUPE_MS,
            floors=floors,
        )
        places = [row[:-2] for row in want if row[0] < END_MS - LATENESS_MS]
        assert sorted(row[:-2] for row in learned.samples) == places, f"schedule {seed}"
        late = Counter((Partition(*p), at) for cursor, p, at in refused["late"] if cursor != "evt")
        of_impressions = Counter(
            {
                (partition, at): num
                for (reason, partition, at), num in learned.dead_letters.items()
                if reason == "late" and partition.topic == "imp"
            }
        )
        assert of_impressions == late, f"schedule {seed}"
        assert all(num == 1 for letter, num in learned.dead_letters.items() if letter[1].topic == "evt")
        num_late += sum(late.values())
    assert num_late > 10


def defined(logs: Log, labels: dict[str, Label]) -> tuple[list[tuple[Any, ...]], dict[str, float]]:
    shares: dict[str, float] = {}
    rules = {"lateness_ms": LATENESS_MS, "early_ms": EARLY_MS, "dedupe_ms": DEDUPE_MS}
    want, _ = batch_join(logs, labels, last_shares=shares, **rules)
    return [row for row in want if row[0] < END_MS - LATENESS_MS], shares


@pytest.mark.parametrize("labels", LATE_LABELS)
def test_as_many_ranks_after_each_kill_learn_late_events_each_as_a_join_of_its_impressions(
    monkeypatch: pytest.MonkeyPatch, labels: dict[str, Label]
) -> None:
    monkeypatch.setattr(partition_clock, "POINT_RECORDS", 4)
    for seed in range(NUM_EXAMPLES or 2):
        rng = random.Random(seed)
        logs = random_logs(rng, num_partitions=3)
        _, happened, version, of_ranks = learn(rng, logs, kills=0.05, idles=0.0, labels=labels, num_ranks=2)
        assert happened[2] > 1
        for rank, learned in enumerate(of_ranks):
            share = PartitionShare(rank, 2)
            own = {p: log for p, log in logs.items() if p[0] != "imp" or share.holds(Partition(*p))}
            want, shares = defined(own, labels)
            rounded = [(*row[:-1], tuple(float(np.float32(f)) for f in row[-1])) for row in want]
            assert learned.samples == rounded, f"schedule {seed}, rank {rank}"
            assert {name: known.share for name, known in version.ranks[rank].shares.items()} == shares
        for name, total in version.total_shares().items():
            first, second = (msgspec.structs.astuple(state.shares[name]) for state in version.ranks)
            assert msgspec.structs.astuple(total) == tuple(a + b for a, b in zip(first, second, strict=True))


def test_any_number_of_ranks_after_each_kill_learns_late_events_once_and_keeps_what_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_clock, "POINT_RECORDS", 4)
    monkeypatch.setattr(join_state, "MEMORY", 1.0)  # then what is counted does not depend on who counts it
    grades: Counter[int] = Counter()
    for seed in range(NUM_EXAMPLES or 8):
        rng, labels = random.Random(seed), LATE_LABELS[seed % len(LATE_LABELS)]
        logs = random_logs(rng, num_partitions=3)
        learned, _, version, _ = learn(rng, logs, kills=0.05, idles=0.0, labels=labels)
        want, _ = defined(logs, labels)
        assert sorted(row[:-1] for row in learned.samples) == [row[:-1] for row in want], f"schedule {seed}"
        grades.update(row[6] for row in want)
        alone, *_ = learn(rng, logs, kills=0.0, idles=0.0, labels=labels, num_ranks=1)
        for name, found in version.total_shares().items():
            expected = msgspec.structs.astuple(alone.shares[name])
            assert msgspec.structs.astuple(found) == pytest.approx(expected), f"schedule {seed}"
    assert grades[SETTLED] > 100


def place(due_ms: int) -> SamplePlace:
    return SamplePlace.after_all_at(due_ms)


def mark(next_offset: int, replay_offset: int, **more: Any) -> PartitionMark:
    return PartitionMark("id", next_offset, replay_offset, **more)


def test_partitions_of_different_ranks_go_on_each_where_it_was() -> None:
    version = JoinState(
        place(100),
        {"imp+60": {"imp/0": mark(10, 5), "imp/2": mark(12, 6)}, "evt": {"evt/0": mark(20, 10, is_idle=True)}},
        num_duplicates=2,
        others=[
            JoinState(
                place(300),
                {"imp+60": {"imp/1": mark(40, 30)}, "evt": {"evt/0": mark(25, 15, floors=[(20, 90), (24, 95)])}},
                num_duplicates=3,
            )
        ],
    )
    alone = take_over(version, PartitionShare())
    assert alone == JoinState(
        place(100),
        {
            "imp+60": {"imp/0": mark(10, 5), "imp/2": mark(12, 6), "imp/1": mark(40, 30)},
            # rank 0 had read to 20 without a floor there: it decides nothing about 20, which it had not read
            "evt": {"evt/0": mark(25, 10, floors=[(20, 90), (24, 95)], letters_offset=20)},
        },
        num_duplicates=5,
        ahead={"imp/1": place(300)},
    )
    second = take_over(version, PartitionShare(1, 3))
    assert second == JoinState(
        place(300),
        {
            "imp+60": {"imp/1": mark(40, 30)},
            "evt": {"evt/0": mark(25, 15, floors=[(20, 90), (24, 95)])},
        },
    )
    assert take_over(version, PartitionShare(3, 4)) is None
    assert take_over(version, PartitionShare(1, 2)) == version.others[0]


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 5])
def test_what_is_known_of_shares_is_divided_by_partitions_and_their_sum_stays(num_ranks: int) -> None:
    def known(cursors: list[str], *counts: float) -> JoinState:
        marks = {name: mark(10, 5) for name in cursors}
        shares = {"click": WindowShare(*counts)}
        return JoinState(place(100), {"imp+60": marks, "evt": {"evt/0": mark(20, 10)}}, shares=shares)

    first, second = known(["imp/0", "imp/3"], 40.0, 20.0, 60.0, 90.0, 21.0), known(["imp/1"], 9.0, 1.0, 10.0, 30.0, 1.0)
    version = JoinState.of_ranks([first, second, JoinState(FIRST_PLACE, {})])
    total = WindowShare(49.0, 21.0, 70.0, 120.0, 22.0)
    assert version.total_shares() == {"click": total}
    assert total.share == pytest.approx(0.7)
    states = [take_over(version, PartitionShare(rank, num_ranks)) for rank in range(num_ranks)]
    num_held = [sum(number % num_ranks == rank for number in (0, 1, 3)) for rank in range(num_ranks)]
    for num, state in zip(num_held, states, strict=True):
        assert (state is not None) == (num > 0)
        if state is not None:
            found = msgspec.structs.astuple(state.shares["click"])
            assert found == pytest.approx([num / 3 * count for count in msgspec.structs.astuple(total)])
    kept = JoinState.of_ranks(states).total_shares()["click"]
    assert msgspec.structs.astuple(kept) == pytest.approx(msgspec.structs.astuple(total))


def test_a_rank_that_had_learned_nothing_needs_all_events() -> None:
    first = JoinState(place(100), {"imp+60": {"imp/0": mark(10, 5)}, "evt": {"evt/0": mark(20, 10)}})
    alone = take_over(JoinState.of_ranks([first, None]), PartitionShare())
    assert alone.released == FIRST_PLACE
    assert alone.ahead == {"imp/0": place(100)}
    assert alone.cursors["evt"] == {"evt/0": mark(20, BEGINNING, letters_offset=20)}
    # one without partitions needs none
    alone = take_over(JoinState.of_ranks([first, JoinState(FIRST_PLACE, {})]), PartitionShare())
    assert alone.released == place(100)
    assert JoinState.of_ranks([None, JoinState(FIRST_PLACE, {})]) is None
