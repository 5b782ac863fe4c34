"""Several ranks join clicks to impressions: each impression is learned once with its label, whatever R was before."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from springtide.app.errors import UserError
from springtide.app.training.state.stream_state import StreamState
from springtide.app.training.trainer import Trainer
from springtide.stream.join_state import NOTHING_JOINED
from springtide_client.keys import encode_id
from tests.app.training.ranks.joined_traffic import JoinedTraffic
from tests.app.training.ranks.thread_trainers import on_trainers, running_ranks
from tests.app.training.trainer_env import TrainerEnv, expected_counts, published, records
from tests.support.waiting import wait_until


class Learned:
    """What trainers learn, and are ended by in the middle."""

    def __init__(self) -> None:
        self.labels: dict[int, set[int]] = defaultdict(set)

    def by(self, trainer: Trainer, *, dies_after: float = float("inf")) -> Any:
        """Run a trainer; its process dies once so many samples are learned."""
        learn = trainer.learn

        def learn_and_note(batch) -> None:
            if trainer.state.samples_trained >= dies_after:
                raise RuntimeError("killed")
            learn(batch)
            for item, label in zip(batch.features.categorical_NC[:, 1].tolist(), batch.labels_NL[:, 0], strict=True):
                self.labels[item].add(int(label))

        trainer.learn = learn_and_note
        return trainer.run()


def test_each_impression_is_learned_once_with_its_label_by_two_ranks_then_one_then_three(env: TrainerEnv) -> None:
    traffic, learned = JoinedTraffic(env), Learned()
    traffic.send(600)
    for num_ranks, dies_after, more in ((2, 100, 200), (1, 300, 200), (3, 500, 0)):
        with pytest.raises(RuntimeError, match="killed"):
            on_trainers(env, num_ranks, lambda trainer, after=dies_after: learned.by(trainer, dies_after=after))
        version = records(env)[-1].meta
        assert 0 < version.samples_trained <= dies_after + 64 * num_ranks
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
    JoinedTraffic(env)
    env.configure("[join]\ndedupe_seconds = 1")
    with pytest.raises(UserError, match="partitioned_by_key = true"):
        on_trainers(env, 2, until_end=True)
    env.configure("[join]\npartitioned_by_key = true")
    on_trainers(env, 2, until_end=True)
