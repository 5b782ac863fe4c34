"""The pass against the plain oracle, and its scores against the client's reference, bit by bit."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.app.training.step.wide_step import NO_ENDS
from springtide.kernels.cpu.wide.arrays import (
    ALL_COUNTED,
    NO_SHARES,
    NO_WEIGHTS,
    NONE_SETTLED,
    CrossBatch,
    WideBatch,
)
from springtide.kernels.cpu.wide.in_order import in_order_pass
from springtide.kernels.cpu.wide.prepare import (
    cross_weights,
    crosses_of,
    fields_of,
    list_offsets,
    prepare_batch,
    running_numbers,
)
from springtide_client.features import Features, Ragged
from springtide_client.keys import CROSSES, MISSING_ID
from springtide_client.schema import Schema
from springtide_client.wide.fields import WideFields, bin_ids, signed_logs, standardize
from springtide_client.wide.layout import born_column, born_of, wide_width
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.score import WideRows, score
from springtide_client.wide.slots import MAX_CROSSED, bin_keys, cross_ids, cross_slots, row_hashes, slots_of, with_bias
from tests.support.wide_oracle import WideOracle

DIM = 4
SCHEMA = Schema(
    labels=("click", "buy"), categorical=("user", "item"), multi_value=("genres",), sequence=("last",), dense=("price",)
)
BIASED = replace(SCHEMA, bias=("position", "layout"))


def vector(number: int, id_: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng([number, id_ % 97]).normal(0, 0.3, DIM).astype(np.float32)


def oracle_cross(*words: int) -> int:
    left, right = (
        row_hashes(np.array([number]), np.array([id_]), np.array([born], np.float32))
        for number, id_, born in (words[:3], words[3:])
    )
    return int(cross_ids(left, right)[0])


class SmallTable:
    """Rows in growing arrays, as the pass takes them."""

    def __init__(self, schema: Schema) -> None:
        self.schema, self.num_labels = schema, len(schema.labels)
        self.places: dict[tuple[int, int], int] = {}
        width = wide_width(self.num_labels)
        self.values, self.counts = np.zeros((5000, DIM), np.float32), np.zeros(5000, np.int64)
        self.states = np.zeros((5000, 1 + width), np.float32)
        self.squares, self.wide = self.states[:, 0], self.states[:, 1:]
        self.cross_places: dict[int, int] = {}
        self.crosses = np.zeros((200_000, 2 * self.num_labels), np.float32)
        self.fields = WideFields.of(schema)
        self.parameters = WideParameters.initial(self.fields, len(schema.dense), self.num_labels)
        self.samples = 0

    def rows_of(self, features_K: np.ndarray, ids_K: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        rows = []
        for number, id_ in zip(features_K.tolist(), ids_K.tolist(), strict=True):
            if (number, id_) not in self.places:
                self.places[number, id_] = len(self.places)
                self.values[self.places[number, id_]] = vector(number, id_)
            rows.append(self.places[number, id_])
        return np.array(rows, np.int64)

    def keys(self) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        numbers, ids = zip(*self.places, strict=True)
        return np.array(numbers), np.array(ids)

    def slots(self, features: Features, x_NX: np.ndarray):  # type: ignore[type-arg, no-untyped-def]
        from springtide_client.model.inputs import lookup_keys

        bins_ND = with_bias(self.schema, bin_ids(x_NX), features.bias_NB)
        keys = zip(lookup_keys(self.schema, features), bin_keys(self.schema, bins_ND), strict=True)
        rows_K = self.rows_of(*(np.concatenate(parts) for parts in keys))
        return slots_of(self.schema, features).at(rows_K), rows_K

    def learn(self, features, net_NL, labels_NL, weights_N, most=1 << 20):  # type: ignore[no-untyped-def]
        num = len(features)
        x_NX = running_numbers(signed_logs(features.dense_NF), self.parameters.number_statistics_3D)
        slots, rows_K = self.slots(features, x_NX)
        numbers, ids = self.keys()
        states = self.states[: len(numbers)].copy()
        num_bias = len(self.schema.bias)
        own, usable_U, hashes_U, potential_N = prepare_batch(
            *(fields_of(self.schema), 2, 1 + num_bias, list_offsets(features), rows_K, numbers, ids, states),
            *(self.samples, False, num_bias),
        )
        for array, expected in zip(own, slots[:5], strict=True):
            np.testing.assert_array_equal(array, expected)
        first_U = np.full(len(numbers), num)
        np.minimum.at(first_U, slots.rows_S, np.repeat(np.arange(num), np.diff(slots.offsets_N1)))
        born = self.wide[: len(numbers), born_column(self.num_labels)]
        np.testing.assert_array_equal(usable_U, np.where(born > 0, -1, first_U + 1))
        born[:] = np.where((born == 0) & (first_U < num), born_of(self.samples + first_U), born)
        np.testing.assert_array_equal(hashes_U, row_hashes(numbers, ids, born))
        np.testing.assert_array_equal(states, self.states[: len(numbers)])
        logits_NL, errors_NL = np.zeros((num, self.num_labels)), np.zeros((num, self.num_labels), np.float32)
        batch = WideBatch(
            slots.rows_S,
            slots.fields_S,
            slots.offsets_N1,
            x_NX,
            net_NL,
            labels_NL,
            np.repeat(weights_N[:, None], self.num_labels, axis=1),
            weights_N,
            np.zeros_like(labels_NL),
            self.values,
            self.states,
            self.counts,
            1,
            NO_SHARES,
            NONE_SETTLED,
            ALL_COUNTED,
            True,
            NO_WEIGHTS if slots.weights_S is None else slots.weights_S,
        )
        start = 0
        while start < num:
            ids_C, pairs_C, offsets_R1, stop = crosses_of(
                slots.rows_S,
                slots.crossed_from_NF,
                slots.num_crossed_NF,
                self.parameters.pair_fields_P2,
                self.parameters.pair_is_live_P,
                usable_U,
                hashes_U,
                start,
                num,
                most,
            )
            rows_C = np.array([self.cross_places.setdefault(i, len(self.cross_places)) for i in ids_C.tolist()], int)
            weights_C = NO_WEIGHTS
            if slots.weights_S is not None:
                of_slots = slots.weights_S, slots.rows_S, slots.crossed_from_NF, slots.num_crossed_NF
                pairs = self.parameters.pair_fields_P2, self.parameters.pair_is_live_P
                weights_C = cross_weights(*of_slots, *pairs, usable_U, start, len(ids_C))
            crosses = CrossBatch(start, stop, rows_C, pairs_C, offsets_R1, potential_N, self.crosses, weights_C)
            in_order_pass(batch, crosses, self.parameters, 0.1, 0.1, logits_NL, errors_NL, NO_ENDS, logits_NL)
            start = stop
        self.samples += num
        return logits_NL, errors_NL

    def score(self, features: Features, net_NL: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        """The reference, of one sample."""
        x_NX = standardize(signed_logs(features.dense_NF), self.parameters.number_statistics_3D)
        slots, _ = self.slots(features, x_NX)
        numbers, ids = self.keys()
        born = self.wide[: len(numbers), born_column(self.num_labels)]
        hashes_U = row_hashes(numbers, ids, born)
        crosses = cross_slots(slots, self.parameters.pair_fields_P2, self.parameters.live_pairs, hashes_U, born)
        cross_rows = np.array(
            [
                self.crosses[self.cross_places[i]] if i in self.cross_places else np.zeros(2 * self.num_labels)
                for i in crosses.ids_C.tolist()
            ],
            np.float32,
        ).reshape(-1, 2 * self.num_labels)
        return score(
            self.parameters, slots, WideRows(self.values, self.wide, self.counts), crosses, cross_rows, x_NX, net_NL
        )


def samples(num: int, seed: int, longest=(3, 11)):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)

    def ragged(longest: int) -> Ragged:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, longest + 1, num))])
        return Ragged(rng.integers(0, 6, offsets[-1]), offsets)

    dense = (rng.normal(size=(num, 1)) * 40).astype(np.float32)
    dense[rng.random((num, 1)) < 0.2] = np.nan
    features = Features(rng.integers(0, 8, (num, 2)), tuple(map(ragged, longest)), dense)
    labels = (rng.random((num, 2)) < 0.3).astype(np.float32)
    labels[rng.random((num, 2)) < 0.2] = np.nan
    net = rng.normal(0, 0.5, (num, 2)).astype(np.float32)
    return features, net, labels, rng.uniform(0.5, 2, num).astype(np.float32)


def as_oracle(features: Features, n: int):  # type: ignore[no-untyped-def]
    fields, crossed = [[(c, int(features.categorical_NC[n, c]))] for c in range(2)], []
    for number, ragged in zip((2, 3), features.lists, strict=True):
        ids = ragged.ids_M[ragged.offsets[n] : ragged.offsets[n + 1]].tolist()
        fields.append([(number, id_) for id_ in ids])
        crossed.append([(number, id_) for id_ in (ids[:MAX_CROSSED] if number == 2 else ids[-MAX_CROSSED:])])
    bias = [] if features.bias_NB is None else [[(5 + b, id_)] for b, id_ in enumerate(features.bias_NB[n].tolist())]
    logs = signed_logs(features.dense_NF[n : n + 1])[0].tolist()
    return [*fields, *bias], [*fields[:2], *crossed, *bias], logs


def with_random_bias(features: Features, seed: int) -> Features:
    rng = np.random.default_rng([seed, 7])
    bias_NB = rng.integers(0, 4, (len(features), 2))
    bias_NB[rng.random(bias_NB.shape) < 0.2] = MISSING_ID
    return replace(features, bias_NB=bias_NB)


@pytest.mark.parametrize(
    ("longest", "schema"), [((3, 11), SCHEMA), ((1, 1), SCHEMA), ((1, 2), SCHEMA), ((3, 11), BIASED), ((1, 1), BIASED)]
)
def test_the_pass_learns_what_the_oracle_learns_and_scores_what_the_reference_scores(
    longest: tuple[int, int], schema: Schema
) -> None:
    num_bias = len(schema.bias)
    numbers = list(range(5 + num_bias))
    table, oracle = (
        SmallTable(schema),
        WideOracle(numbers, 1, 2, DIM, first_vector=vector, cross_id=oracle_cross, num_bias=num_bias),
    )
    for number, num in enumerate((1, 40, 1, 100, 1)):
        features, net, labels, weights = samples(num, seed=number, longest=longest)
        features = with_random_bias(features, number) if num_bias else features
        reference = table.score(features, net) if num == 1 else None
        most = 1 << 20 if number < 3 else 100
        logits, errors = table.learn(features, net, labels, weights, most=most)
        if reference is not None:
            assert logits.tolist() == reference.tolist()
        for n in range(num):
            own = oracle.learn(*as_oracle(features, n), net[n].tolist(), labels[n].tolist(), float(weights[n]))
            np.testing.assert_allclose(logits[n], own[0], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(errors[n], own[1], rtol=1e-4, atol=1e-6)
    p = table.parameters
    np.testing.assert_allclose(p.gates_LTB, oracle.a, rtol=1e-4)
    np.testing.assert_allclose(p.gate_information_LTB, oracle.A, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(p.pair_gains_P, oracle.gains, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(p.group_weights_LG, oracle.c, rtol=1e-4)
    np.testing.assert_allclose(p.mixture_L, oracle.mixture, rtol=1e-4)
    np.testing.assert_allclose(p.seen_weights_LF2, oracle.u, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(p.slot_totals_4, [oracle.samples, oracle.first_total, oracle.cross_total, 143])
    for key, row in oracle.rows.items():
        place = table.places[key]
        np.testing.assert_allclose(table.values[place], row.v, rtol=1e-3, atol=1e-5)
        assert (table.counts[place], table.wide[place, born_column(2)]) == (row.n, row.born)
        np.testing.assert_allclose(table.wide[place, :8:4], row.w, rtol=1e-3, atol=1e-5)
        if key[0] >= 5:
            np.testing.assert_array_equal(table.values[place], vector(*key))  # no net and no machine sees them
    assert table.cross_places.keys() == oracle.cross_rows.keys()
    assert CROSSES not in table.fields.numbers_F


@pytest.mark.parametrize("longest", [(3, 11), (1, 1)])
def test_summed_squares_fade_so_that_steps_never_die(longest: tuple[int, int]) -> None:
    table, oracle = (
        SmallTable(SCHEMA),
        WideOracle([0, 1, 2, 3, 4], 1, 2, DIM, first_vector=vector, cross_id=oracle_cross),
    )
    for seed in (1, 2):
        features, net, labels, weights = samples(30, seed=seed, longest=longest)
        table.learn(features, net, labels, weights)
        for n in range(30):
            oracle.learn(*as_oracle(features, n), net[n].tolist(), labels[n].tolist(), float(weights[n]))
        if seed == 1:  # as of rows seen often
            table.squares[: len(table.places)] = 1000.0
            for row in oracle.rows.values():
                row.squares = 1000.0
    squares = [float(table.squares[table.places[key]]) for key in oracle.rows]
    np.testing.assert_allclose(squares, [row.squares for row in oracle.rows.values()], rtol=1e-5)
    assert any(999.0 < each < 1000.0 for each in squares)


def test_a_batch_learned_at_once_or_in_parts_gives_the_same_bits() -> None:
    features, net, labels, weights = samples(60, seed=9)
    whole, parts = SmallTable(SCHEMA), SmallTable(SCHEMA)
    logits, _ = whole.learn(features, net, labels, weights)
    for start, stop in ((0, 7), (7, 8), (8, 60)):
        own = slice(start, stop)
        some, _ = parts.learn(features.slice(start, stop), net[own], labels[own], weights[own])
        assert some.tolist() == logits[own].tolist()
    for name, array in whole.parameters.named().items():
        assert array.tobytes() == parts.parameters.named()[name].tobytes(), name


def test_samples_with_and_without_lists_may_follow_each_other_in_any_order() -> None:
    """Scores stay those of the reference: what a sample's repeated rows leave behind is not in the next one's way."""
    table = SmallTable(SCHEMA)
    for seed in range(30):
        features, net, labels, weights = samples(1, seed=seed, longest=(1, 1) if seed % 2 else (3, 11))
        reference = table.score(features, net)
        logits, _ = table.learn(features, net, labels, weights)
        assert logits.tolist() == reference.tolist()


def test_many_samples_teach_what_they_have_in_common() -> None:
    table = SmallTable(SCHEMA)
    losses = []
    for seed in range(12):
        features, net, labels, weights = samples(64, seed=seed)
        labels[:] = (features.categorical_NC[:, :1] % 2 == 0).astype(np.float32)
        logits, _ = table.learn(features, net * 0, labels, weights)
        losses.append(float(np.logaddexp(0, np.where(labels > 0.5, -logits, logits)).mean()))
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.5 * losses[0]


def test_a_net_that_knows_each_samples_last_label_which_is_wrong_now_does_not_run_away() -> None:
    table, losses = SmallTable(SCHEMA), []
    features, net, labels, weights = samples(40, seed=3)
    labels[:], net[:] = np.arange(80).reshape(40, 2) % 2, 0
    for _ in range(60):
        logits, errors = table.learn(features, net, labels, weights)
        losses.append(float(np.logaddexp(0, np.where(labels > 0.5, -logits, logits)).mean()))
        net -= 2 * errors  # it remembers, and its weight falls
        labels = 1 - labels
    assert table.parameters.group_weights_LG[:, 4].max() < 0.5
    assert max(losses) < 2
    assert np.abs(net).max() < 20


def test_a_net_that_is_not_finite_teaches_nothing_and_hands_back_what_is_refused() -> None:
    table = SmallTable(SCHEMA)
    features, net, labels, weights = samples(3, seed=1)
    labels[:] = 1
    net[1] = np.nan
    _, errors = table.learn(features, net, labels, weights)
    assert np.isnan(errors).tolist() == [[False, False], [True, True], [False, False]]
    assert np.isfinite(table.wide).all()
    assert all(np.isfinite(array).all() for array in table.parameters.named().values())


@pytest.mark.parametrize("label", [0, 1])
def test_one_label_for_ever_leaves_the_base_rate_between_0_and_1(label: int) -> None:
    table = SmallTable(SCHEMA)
    features, net, labels, weights = samples(64, seed=1)
    labels[:], weights[:] = label, 1000
    table.parameters.samples_L[:] = 1e6  # what is remembered
    table.parameters.clicks_L[:] = 1e-300 if label == 0 else 1e6
    for _ in range(3):
        table.learn(features, net * 0, labels, weights)
    assert (table.parameters.clicks_L >= 1).all()
    assert (table.parameters.samples_L - table.parameters.clicks_L >= 2.9).all()
    assert np.abs(table.parameters.base_L).max() < 14


@settings(max_examples=15, deadline=None)
@given(
    weight=st.sampled_from([1e-38, 1.0, 30.0, 1e3, 3e38]),
    clicked=st.sampled_from(["never", "always", "in turn", "rarely", "it changes"]),
    net=st.sampled_from([0.0, 3e38]),
    dense=st.sampled_from([1e-38, 1.0, 3e38]),
    is_one_sample=st.booleans(),
)
def test_whatever_comes_numbers_stay_finite(
    weight: float, clicked: str, net: float, dense: float, is_one_sample: bool
) -> None:
    table, largest = SmallTable(SCHEMA), 0.0
    for number in range(8):
        features, net_NL, labels, weights = samples(60, seed=number)
        if is_one_sample:
            features = features.slice(0, 1)
            features = Features.concatenate([features] * 60)
        at = np.arange(60)[:, None]
        labels[:] = {"never": 0, "always": 1, "in turn": at % 2, "rarely": at == 7, "it changes": number % 4 < 2}[
            clicked
        ]
        weights[:], net_NL[:] = weight, np.sign(net_NL) * net
        features.dense_NF[:] = np.sign(features.dense_NF) * dense
        logits, errors = table.learn(features, net_NL, labels, weights)
        assert np.isfinite(logits).all()
        assert np.isfinite(errors).all()
    for array in (table.values, table.squares, table.wide, table.crosses, *table.parameters.named().values()):
        assert np.isfinite(array).all()
    assert net or largest < 100 or weight > 1000


WEIGHTED = replace(SCHEMA, weighted=("genres",))


def weighted_samples(num: int, seed: int, choices=(0.0, 0.2, 1.0, -0.7, 2.5), longest=(3, 11)):  # type: ignore[no-untyped-def]
    """Samples whose genres, each at most once, have weights; the other list is without."""
    features, *others = samples(num, seed=seed, longest=longest)
    rng, lists = np.random.default_rng(seed), []
    for _ in range(num):
        lists.append(rng.permutation(6)[: rng.integers(0, 4)])
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in lists])])
    weights = rng.choice(choices, offsets[-1]).astype(np.float32)
    genres = Ragged(np.concatenate(lists), offsets, weights)
    return replace(features, lists=(genres, features.lists[1])), *others


def weights_of(features: Features, n: int) -> dict[tuple[int, int], float]:
    genres = features.lists[0].slice(n, n + 1)
    assert genres.weights_M is not None
    return {(2, id_): weight for id_, weight in zip(genres.ids_M.tolist(), genres.weights_M.tolist(), strict=True)}


def test_ids_with_weights_are_scored_and_learned_as_the_oracle_does() -> None:
    table, oracle = (
        SmallTable(WEIGHTED),
        WideOracle([0, 1, 2, 3, 4], 1, 2, DIM, first_vector=vector, cross_id=oracle_cross),
    )
    for number, num in enumerate((1, 40, 1, 100, 1)):
        features, net, labels, weights = weighted_samples(num, seed=number)
        reference = table.score(features, net) if num == 1 else None
        logits, errors = table.learn(features, net, labels, weights, most=1 << 20 if number < 3 else 100)
        if reference is not None:
            assert logits.tolist() == reference.tolist()
        for n in range(num):
            oracle.weights = weights_of(features, n)
            own = oracle.learn(*as_oracle(features, n), net[n].tolist(), labels[n].tolist(), float(weights[n]))
            np.testing.assert_allclose(logits[n], own[0], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(errors[n], own[1], rtol=1e-4, atol=1e-6)
    p = table.parameters
    np.testing.assert_allclose(p.gates_LTB, oracle.a, rtol=1e-4)
    np.testing.assert_allclose(p.pair_gains_P, oracle.gains, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(p.group_weights_LG, oracle.c, rtol=1e-4)
    np.testing.assert_allclose(p.seen_weights_LF2, oracle.u, rtol=1e-3, atol=1e-7)
    for key, row in oracle.rows.items():
        place = table.places[key]
        np.testing.assert_allclose(table.values[place], row.v, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(table.wide[place, :8:4], row.w, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(table.wide[place, 1:8:4], row.h, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(table.wide[place, 2:8:4], row.plain, rtol=1e-3, atol=1e-5)
    for id_, row in oracle.cross_rows.items():
        np.testing.assert_allclose(table.crosses[table.cross_places[id_]], np.ravel(row), rtol=1e-3, atol=1e-5)


def test_weights_of_one_give_the_bits_of_lists_without_weights() -> None:
    weighted, plain = SmallTable(WEIGHTED), SmallTable(SCHEMA)
    for seed in range(3):
        # no id repeats within a list: the step of its vector would be a sum that is rounded otherwise
        features, *others = weighted_samples(60, seed, choices=(1.0,), longest=(3, 1))
        genres = features.lists[0]
        without = replace(features, lists=(Ragged(genres.ids_M, genres.offsets), features.lists[1]))
        of_weighted, of_plain = weighted.learn(features, *others), plain.learn(without, *others)
        assert [each.tolist() for each in of_weighted] == [each.tolist() for each in of_plain]
    assert weighted.wide.tolist() == plain.wide.tolist()


def test_an_id_of_weight_zero_changes_no_number_but_its_count() -> None:
    table = SmallTable(WEIGHTED)
    features, *others = weighted_samples(80, seed=1, choices=(0.0,))
    table.learn(features, *others)
    places = [place for (number, _), place in table.places.items() if number == 2]
    assert places
    assert not table.wide[places, :8].any()
    assert (table.counts[places] > 0).all()
    for (number, id_), place in table.places.items():
        if number == 2:
            assert table.values[place].tolist() == vector(number, id_).tolist()


def test_the_largest_weights_do_not_make_logits_run_away() -> None:
    table = SmallTable(WEIGHTED)
    losses = []
    for seed in range(20):
        features, net, labels, weights = weighted_samples(50, seed, choices=(1000.0, -1000.0, 1.0, 0.5))
        logits, errors = table.learn(features, net, labels, weights)
        assert np.isfinite(logits).all()
        assert np.isfinite(errors).all()
        y = np.where(np.isnan(labels), 0.0, labels)
        losses.append(np.mean((np.logaddexp(0, logits) - y * logits)[~np.isnan(labels)]))
    assert np.isfinite(table.wide).all()
    assert np.isfinite(table.values).all()
    assert max(losses[-5:]) < 3  # labels are random: more than 0.7 is what such weights cost
