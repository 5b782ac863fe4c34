"""The score equals the plain oracle bit by bit."""

import math

import numpy as np
import pytest

from springtide_client.keys import CROSSES
from springtide_client.wide.fields import standardize
from springtide_client.wide.parameters import PREFIX, WideParameters
from springtide_client.wide.score import WideRows, score
from springtide_client.wide.slots import CrossSlots, Slots
from tests.support.wide_log import columns, parameters_of
from tests.support.wide_oracle import WideOracle


def oracle_id(*words: float) -> int:
    return hash(tuple(map(int, words)))


@pytest.mark.parametrize(("num_labels", "num_dense"), [(1, 2), (3, 0)])
def test_a_learned_model_scores_samples_as_the_oracle_does(num_labels: int, num_dense: int) -> None:
    rng = np.random.default_rng(3)
    numbers, dim = list(range(3 + num_dense)), 4

    def vector(number: int, id_: int) -> np.ndarray:  # type: ignore[type-arg]
        return np.random.default_rng([number, id_ % 97]).normal(0, 0.3, dim)

    oracle = WideOracle(numbers, num_dense, num_labels, dim, first_vector=vector, cross_id=oracle_id)

    def sample() -> tuple[list[list[tuple[int, int]]], list[float], list[float]]:
        fields = [[(0, int(rng.integers(6)))], [(1, int(rng.integers(4)))]]
        fields.append([(2, int(id_)) for id_ in rng.integers(0, 5, rng.integers(0, 4))])
        logs = [math.nan if rng.random() < 0.2 else float(rng.normal()) for _ in range(num_dense)]
        return fields, logs, rng.normal(size=num_labels).tolist()

    for _ in range(300):
        fields, logs, net = sample()
        oracle.learn(fields, fields, logs, net, [float(rng.random() < 0.3) for _ in range(num_labels)])
    parameters = parameters_of(oracle)
    assert WideParameters.of({PREFIX + name: array for name, array in parameters.named().items()}) is not None
    assert WideParameters.of({"net.weight": np.zeros(1)}) is None
    for _ in range(30):
        fields, logs, net = sample()
        x_NX = standardize(np.array([logs]).reshape(1, -1), parameters.number_statistics_3D)
        slots, crosses, _ = oracle.slots_and_crosses(fields, fields, oracle.standard(logs))
        found = [oracle.row(key) for _, key in slots]
        wide = [[v for label in range(num_labels) for v in columns(row, label)] + [row.born] for row in found]
        rows = WideRows(
            np.array([row.v for row in found], np.float32),
            np.array(wide, np.float32),
            np.array([row.n for row in found], np.int64),
        )
        own = Slots(
            np.arange(len(slots)), np.array([f for f, _ in slots]), np.array([0, len(slots)]), *np.zeros((2, 1, 1), int)
        )
        cross_rows = np.array(
            [np.ravel(oracle.cross_rows.get(id_, [[0.0, 0.0]] * num_labels)) for _, id_ in crosses], np.float32
        ).reshape(-1, 2 * num_labels)
        pairs = CrossSlots(
            np.array([id_ for _, id_ in crosses], np.int64),
            np.array([p for p, _ in crosses], np.int64),
            np.array([0, len(crosses)]),
        )
        logits_NL = score(parameters, own, rows, pairs, cross_rows, x_NX, np.array([net]))
        assert logits_NL[0].tolist() == oracle.predict(fields, fields, logs, net)


def test_crosses_have_a_number_that_no_feature_can_have() -> None:
    assert CROSSES == 32767
