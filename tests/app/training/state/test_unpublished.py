"""Scores of samples that several ranks learn are those of one process, also where some correct what was learned."""

import dataclasses

import numpy as np

from springtide.app.scores.config import ScoresConfig
from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.scores.segments import SegmentNames
from springtide.app.training.state.unpublished import PendingScores
from springtide.app.training.step.learning_step import StepReport
from springtide.stream.columns import Batch
from springtide.stream.join_state import FIRST, LATE, OTHER_WINDOW, SETTLED
from tests.app.training.random_clicks import SCHEMA, make_batch
from tests.app.training.step.rank_learners import union_of

NUM_RANKS, WINDOW = 3, 300
EVERY_GRADE = (FIRST, SETTLED, OTHER_WINDOW, LATE)


def new_scores(num_ranks: int) -> tuple[ProgressiveScores, PendingScores]:
    config = ScoresConfig(by=("user_id",), reference_samples=500)
    scores = ProgressiveScores(SCHEMA.labels, WINDOW, config, SCHEMA)
    return scores, PendingScores(scores, SegmentNames(SCHEMA, scores.by), num_ranks)


def parts_of(step: int) -> list[Batch]:
    """The ranks' batches: of every grade, of first samples, of late ones, without samples."""
    grades = (EVERY_GRADE, (FIRST,), (LATE, SETTLED), (FIRST,))
    lengths = (40, 25, 30, 0)
    parts = []
    for rank in range(NUM_RANKS):
        kind = (rank + step) % 4
        batch = make_batch(NUM_RANKS * step + rank, lengths[kind])
        grade_N = np.resize(np.array(grades[kind], np.uint8), lengths[kind])
        parts.append(dataclasses.replace(batch, grade_N=grade_N) if lengths[kind] else Batch.empty(SCHEMA))
    return parts


def test_ranks_score_the_samples_that_one_process_scores() -> None:
    alone_scores, alone = new_scores(1)
    ranks = [new_scores(NUM_RANKS) for _ in range(NUM_RANKS)]
    for step in range(60):
        parts = parts_of(step)
        whole = union_of(parts)
        is_scored_N = np.concatenate([part.is_scored_N for part in parts if len(part)])
        logits_NL = np.random.default_rng(step).normal(size=(len(whole), 1)).astype(np.float32)
        num_scored_R = [part.num_scored for part in parts]
        assert sum(num_scored_R) == is_scored_N.sum()
        report = StepReport(logits_NL, whole.labels_NL, whole.weights_N, num_scored=sum(num_scored_R))
        alone.add_step(report, whole.features, is_scored_N)
        for rank, (part, (_, pending)) in enumerate(zip(parts, ranks, strict=True)):
            own = dataclasses.replace(report, num_scored_before=sum(num_scored_R[:rank]))
            pending.add_step(own, part.features, part.is_scored_N)
        if step % 7 == 6 or step == 59:  # when they exchange what they know
            features_R = [pending.features() for _, pending in ranks]
            for _, pending in ranks:
                pending.merge(features_R, [[] for _ in ranks])
    expected = alone_scores.state()
    assert alone_scores.num_samples > 1500
    for scores, _ in ranks:
        found = scores.state()
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
