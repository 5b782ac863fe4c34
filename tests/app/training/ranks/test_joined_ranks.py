"""Several ranks join clicks to impressions: each impression is learned once with its label, whatever R was before."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from springtide.app.errors import UserError
from springtide.app.training.start_position import require_keys_in_one_partition
from springtide.app.training.state.stream_state import StreamState
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.trainer_meta import TrainerMeta
from springtide.stream.columns import Batch
from springtide.stream.join.config import LateRule
from springtide.stream.join_state import FIRST, NOTHING_JOINED, WindowShare
from springtide.stream.positions import PartitionShare
from springtide_client.format.records import VersionMeta
from springtide_client.keys import encode_id
from springtide_client.log.directory import LogDirectory
from tests.app.training.ranks.joined_traffic import SETTINGS, JoinedTraffic
from tests.app.training.ranks.thread_trainers import on_trainers, running_ranks
from tests.app.training.trainer_env import TrainerEnv, expected_counts, published, records
from tests.support.waiting import wait_until

ITEMS = {encode_id(n)[0]: n for n in range(2_000)}  # by id


def dying(trainer: Trainer, num_samples: float) -> Callable[[], None]:
    """Return what ends a trainer's process once so many samples are learned, and in a version."""
    log = LogDirectory(trainer.config.log.path)

    def die() -> None:
        if trainer.state.samples_trained < num_samples:
            return
        if [*log.records(None)][-1].meta.samples_trained >= num_samples:
            raise RuntimeError("killed")
        time.sleep(0.3)  # so that a version is due

    return die


class Learned:
    """What trainers learn, and are ended by in the middle."""

    def __init__(self) -> None:
        self.labels: dict[int, set[int]] = defaultdict(set)

    def by(self, trainer: Trainer, *, dies_after: float = float("inf")) -> Any:
        """Run a trainer; its process dies as `dying` says."""
        learn, die = trainer.learn, dying(trainer, dies_after)

        def learn_and_note(batch) -> None:
            die()
            learn(batch)
            for item, label in zip(batch.features.categorical_NC[:, 1].tolist(), batch.labels_NL[:, 0], strict=True):
                self.labels[item].add(int(label))

        trainer.learn = learn_and_note
        return trainer.run()


LateSample = tuple[int, int, int, float | None]  # item, grade, label, F before it


class LateLearned:
    """What one rank learns in its order, until its process ends."""

    def __init__(self) -> None:
        self.samples: list[LateSample] = []

    def by(self, trainer: Trainer, *, dies_after: float = float("inf")) -> Any:
        """Run a trainer; its process dies as `dying` says."""
        learn, die = trainer.learn, dying(trainer, dies_after)

        def learn_and_note(batch: Batch) -> None:
            die()
            learn(batch)
            num = len(batch)
            grades = [FIRST] * num if batch.grade_N is None else batch.grade_N.tolist()
            shares = [None] * num if batch.shares_NL is None else batch.shares_NL[:, 0].tolist()
            items = [ITEMS[id_] for id_ in batch.features.categorical_NC[:, 1].tolist()]
            self.samples += zip(items, grades, map(int, batch.labels_NL[:, 0].tolist()), shares, strict=True)

        trainer.learn = learn_and_note
        return trainer.run()


def test_each_impression_is_learned_once_with_its_label_by_two_ranks_then_one_then_three(env: TrainerEnv) -> None:
    traffic, learned = JoinedTraffic(env), Learned()
    traffic.send(600)
    for num_ranks, dies_after, more in ((2, 100, 200), (1, 300, 200), (3, 500, 0)):
        with pytest.raises(RuntimeError, match="killed"):
            on_trainers(env, num_ranks, lambda trainer, after=dies_after: learned.by(trainer, dies_after=after))
        version = records(env)[-1].meta
        assert 0 < version.samples_trained < traffic.num
        if more:
            traffic.send(more)
    traffic.end()
    status, *_ = on_trainers(env, 3, learned.by, until_end=True)
    assert status.samples_trained == traffic.num
    assert env.counts() == expected_counts(traffic.num)
    assert learned.labels == {encode_id(n)[0]: {label} for n, label in traffic.labels.items()}
    assert status.dead_letters == traffic.refused
    assert all(at.lag == 0 for at in status.positions.values())
    assert set(status.positions) == {f"impressions/{p}" for p in range(3)} | {f"actions/{p}" for p in range(2)}
    assert (status.join.impressions, status.join.duplicates) == (3, 0)  # those of the end
    assert [rank.partitions for rank in status.ranks] == [3, 3, 3]
    assert np.isclose(status.scores.whole.label_rate, np.mean(list(traffic.labels.values())))


@pytest.mark.parametrize(("rule", "nums"), [("scale", (2, 2)), ("settle", (2, 2, 3)), ("importance_weighted", (2, 1))])
def test_late_clicks_are_learned_by_two_ranks_each_as_a_join_of_its_impressions_and_by_any_number_after_them(
    env: TrainerEnv, rule: LateRule, nums: tuple[int, ...]
) -> None:
    traffic, label = JoinedTraffic(env, rule), env.config.schema.labels[0]
    traffic.send(560)
    traffic.end()
    expected = [traffic.samples_of(PartitionShare(rank, 2)) for rank in range(2)]
    num, stop_R, learned = traffic.num_samples, [0, 0], set[LateSample]()
    for number, num_ranks in enumerate(nums, 1):
        dies_after = number * num // len(nums) if number < len(nums) else float("inf")
        by_ranks = [LateLearned() for _ in range(num_ranks)]

        def work(trainer: Trainer, by_ranks: Any = by_ranks, dies_after: float = dies_after) -> Any:
            return by_ranks[trainer.ranks.rank].by(trainer, dies_after=dies_after)

        if dies_after < num:
            with pytest.raises(RuntimeError, match="killed"):
                on_trainers(env, num_ranks, work)
            before = require_shares_of_all(records(env)[-1].meta, label, rule)
        else:
            status, *_ = on_trainers(env, num_ranks, work, until_end=True)
        for rank, one in enumerate(by_ranks):
            learned.update(one.samples)
            if num_ranks == 2 and one.samples:  # what follows, in its order, after what was lost with the process
                samples = expected[rank][0]
                start = samples.index(one.samples[0])
                assert start <= stop_R[rank] <= start + len(one.samples)  # a process may die where the last one did
                stop_R[rank] = start + len(one.samples)
                assert one.samples == samples[start : stop_R[rank]]
    assert status.samples_trained == num
    assert status.dead_letters == traffic.refused
    assert env.counts() == expected_counts(traffic.num)  # ids count once
    assert (status.join.late, status.join.settled) == (
        len(traffic.late) if rule == "importance_weighted" else 0,
        traffic.num if rule == "settle" else 0,
    )
    assert np.isclose(status.scores.whole.label_rate, np.mean(list(traffic.labels.values())))  # first looks alone
    total = require_shares_of_all(records(env)[-1].meta, label, rule)
    assert status.join.labels[label].on_time_share == total.share == pytest.approx(0.75, abs=0.05)
    assert total.num > before.num > 0
    assert TrainerMeta.of(records(env)[-1].meta).served.num == traffic.num
    if nums[-1] == 2:
        join = TrainerMeta.of(records(env)[-1].meta).join
        for state, (_, shares) in zip(join.ranks, expected, strict=True):
            assert state.shares[label].share == pytest.approx(shares[label])
    wanted = {sample[:3] for samples, _ in expected for sample in samples}
    assert {sample[:3] for sample in learned} == wanted


def require_shares_of_all(meta: VersionMeta, label: str, rule: LateRule) -> WindowShare:
    """Require that a version serves by what the impressions of all ranks say; return that."""
    join = TrainerMeta.of(meta).join
    within, late, num, first, late_so_far = np.sum(
        [msgspec.structs.astuple(state.shares[label]) for state in join.ranks if state is not None], axis=0
    )
    share = within / (within + late) if num >= 30 else (first + 1) / (first + late_so_far + 1)
    assert meta.label_shares == ({label: pytest.approx(share)} if rule == "scale" else {})
    total = join.total_shares()[label]
    assert total.share == pytest.approx(share)
    return total


def test_a_rank_without_impressions_reads_no_events_and_holds_nothing_up(env: TrainerEnv) -> None:
    traffic, learned = JoinedTraffic(env), Learned()
    traffic.send(400)
    traffic.end()  # at once: after a silence what is older would be late
    with running_ranks(env, 4) as ranks:
        published(env, 400)
        wait_until(lambda: len(env.status().ranks) == 4, "the ranks' status")
        assert [rank.partitions for rank in env.status().ranks] == [3, 3, 3, 0]
        wait_until(lambda: env.status().trainer == "running", lambda: f"a trainer that runs: {env.status()}")
        assert StreamState.progress(ranks.trainers[3].state.stream, has_partitions=False).join == NOTHING_JOINED
    status = learned.by(Trainer(env.config, until_end=True))
    assert status.samples_trained == 400
    assert status.dead_letters == traffic.refused


def test_duplicates_among_the_partitions_of_several_ranks_are_refused_unless_none_can_be(env: TrainerEnv) -> None:
    env.configure(SETTINGS, "[join]\ndedupe_seconds = 1")
    with pytest.raises(UserError, match="partitioned_by_key = true"):
        on_trainers(env, 2, until_end=True)
    env.configure("[join]\npartitioned_by_key = true")
    require_keys_in_one_partition(env.config.join)
