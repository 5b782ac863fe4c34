"""Slots, bins, crosses and fields against plain loops."""

import math

import numpy as np

from springtide_client.features import Features, Ragged
from springtide_client.keys import GOLDEN, MASK, MISSING_ID, mix64
from springtide_client.model.inputs import lookup_keys
from springtide_client.schema import Schema
from springtide_client.wide.fields import WideFields, bin_ids, signed_logs, standardize
from springtide_client.wide.layout import born_of, buckets_of, wide_width
from springtide_client.wide.slots import (
    CROSS_SEED,
    MAX_CROSSED,
    all_pairs,
    bin_keys,
    cross_slots,
    num_crossed,
    pairs_to_try,
    row_hashes,
    slots_of,
)

SCHEMA = Schema(
    labels=("click",),
    categorical=("user", "item", "home"),
    multi_value=("genres", "more"),
    sequence=("history",),
    dense=("price", "age"),
    share={"home": "user", "more": "genres"},
)


def features_of(num: int, seed: int = 0) -> Features:
    rng = np.random.default_rng(seed)

    def ragged(longest: int) -> Ragged:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, longest + 1, num))])
        return Ragged(rng.integers(0, 9, offsets[-1]), offsets)

    dense = rng.normal(size=(num, 2)).astype(np.float32) * 40
    dense[rng.random((num, 2)) < 0.3] = np.nan
    return Features(rng.integers(0, 5, (num, 3)), (ragged(3), ragged(2), ragged(12)), dense)


def test_the_number_of_crossed_slots_is_known_without_the_slots() -> None:
    features = features_of(30)
    np.testing.assert_array_equal(num_crossed(SCHEMA, features), slots_of(SCHEMA, features).num_crossed_NF)


def test_every_slot_is_the_right_key_of_the_right_field() -> None:
    features = features_of(7)
    x_NX = standardize(signed_logs(features.dense_NF), np.array([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]))
    bins_ND = bin_ids(x_NX)
    features_K, ids_K = (
        np.concatenate(parts) for parts in zip(lookup_keys(SCHEMA, features), bin_keys(SCHEMA, bins_ND), strict=True)
    )
    slots, fields = slots_of(SCHEMA, features), WideFields.of(SCHEMA)
    assert fields.names == ("user", "item", "genres", "history", "price", "age")
    for n in range(7):
        wanted, crossed = [], []
        for place, number, id_ in ((0, 0, features.categorical_NC[n, 0]), (1, 1, features.categorical_NC[n, 1])):
            wanted.append((place, number, int(id_)))
            crossed.append([int(id_)])
        for place, number, ragged in ((2, 3, features.lists[0]), (3, 5, features.lists[2])):
            ids = ragged.ids_M[ragged.offsets[n] : ragged.offsets[n + 1]].tolist()
            wanted += [(place, number, id_) for id_ in ids]
            crossed.append(ids[:MAX_CROSSED] if place == 2 else ids[-MAX_CROSSED:])
        wanted += [(4 + d, 6 + d, int(bins_ND[n, d])) for d in range(2)]
        crossed += [[int(bins_ND[n, d])] for d in range(2)]
        own = slice(slots.offsets_N1[n], slots.offsets_N1[n + 1])
        rows = slots.rows_S[own]
        assert list(
            zip(slots.fields_S[own].tolist(), features_K[rows].tolist(), ids_K[rows].tolist(), strict=True)
        ) == (wanted)
        for f, ids in enumerate(crossed):
            first, num = int(slots.crossed_from_NF[n, f]), int(slots.num_crossed_NF[n, f])
            assert ids_K[slots.rows_S[first : first + num]].tolist() == ids


def test_slots_of_single_ids_are_the_keys_in_order() -> None:
    schema = Schema(labels=("click",), categorical=("a", "b"))
    features = Features(np.arange(6).reshape(3, 2), (), np.zeros((3, 0), np.float32))
    slots = slots_of(schema, features)
    assert slots.rows_S.tolist() == list(range(6))
    assert slots.fields_S.tolist() == [0, 1] * 3
    assert slots.offsets_N1.tolist() == [0, 2, 4, 6]
    empty = slots_of(schema, features.slice(0, 0))
    assert (len(empty.rows_S), empty.offsets_N1.tolist()) == (0, [0])


def test_numbers_are_standardized_signed_logs_and_their_bins_half_deviations() -> None:
    dense_ND = np.array([[3.0, math.nan], [-8.0, 0.0], [1e30, 2.0]], np.float32)
    statistics = np.array([[0.5, 1.0], [2.0, 0.25], [10.0, 0.0]])
    x_NX = standardize(signed_logs(dense_ND), statistics)
    logs = [math.log1p(3), -math.log1p(8)]
    wanted = [(log - 0.5) / math.sqrt(2 + 1e-4) for log in logs] + [5.0]
    assert x_NX[:, 0].tolist() == wanted
    assert x_NX[:, 1].tolist() == [0, 0, 0]
    assert x_NX[:, 2].tolist() == [0, 0, 0]  # no value was seen yet
    assert x_NX[:, 3].tolist() == [1, 0, 0]
    assert bin_ids(x_NX).tolist() == [[math.floor(2 * wanted[0]), MISSING_ID], [math.floor(2 * wanted[1]), 0], [10, 0]]


def test_buckets_double_from_a_quarter() -> None:
    information = np.array([0, 0.2499, 0.25, 0.4999, 0.5, 1, 1000], np.float32)
    wanted = [0 if 4 * h < 1 else min(11, 1 + math.floor(math.log2(4 * h))) for h in information.tolist()]
    assert buckets_of(information).tolist() == wanted
    assert (wide_width(1), wide_width(3)) == (5, 13)
    assert born_of(np.array([0, 1, (1 << 24) - 2, (1 << 24) - 1])).tolist() == [1, 2, (1 << 24) - 1, 1]


def test_crosses_are_those_of_live_pairs_whose_rows_were_used_before() -> None:
    features = features_of(9, seed=1)
    slots = slots_of(SCHEMA, features)
    num_keys = int(slots.rows_S.max()) + 1
    rng = np.random.default_rng(2)
    numbers, ids = rng.integers(0, 9, num_keys), rng.integers(-5, 5, num_keys)
    born = rng.integers(0, 3, num_keys).astype(np.float32)
    hashes, pairs = row_hashes(numbers, ids, born), all_pairs(6)
    live = np.flatnonzero(rng.random(len(pairs)) < 0.6)
    crosses = cross_slots(slots, pairs, live, hashes, born)

    def row_hash(k: int) -> int:
        key = mix64((int(ids[k]) & MASK) ^ (int(numbers[k]) * GOLDEN & MASK))
        return mix64(key ^ (int(born[k]) * GOLDEN & MASK))

    for n in range(9):
        wanted = []
        for p in live.tolist():
            i, j = pairs[p]
            rows = [
                slots.rows_S[slots.crossed_from_NF[n, f] : slots.crossed_from_NF[n, f] + slots.num_crossed_NF[n, f]]
                for f in (i, j)
            ]
            for left in rows[0]:
                for right in rows[1]:
                    if born[left] and born[right]:
                        id_ = mix64(mix64(row_hash(left) ^ int(CROSS_SEED)) ^ row_hash(right))
                        wanted.append((p, id_ - (1 << 64) if id_ >= 1 << 63 else id_))
        own = slice(crosses.offsets_N1[n], crosses.offsets_N1[n + 1])
        assert list(zip(crosses.pairs_C[own].tolist(), crosses.ids_C[own].tolist(), strict=True)) == wanted
    assert len(cross_slots(slots, pairs, live[:0], hashes, born).ids_C) == 0


def test_of_many_fields_some_pairs_are_tried_whatever_the_order_of_the_fields() -> None:
    numbers = np.arange(150)
    assert pairs_to_try(numbers[:46], 1035).tolist() == all_pairs(46).tolist()
    pairs, other = pairs_to_try(numbers, 1024), pairs_to_try(numbers[::-1].copy(), 1024)
    assert len(np.unique(pairs, axis=0)) == 1024
    assert {frozenset(pair) for pair in pairs.tolist()} == {frozenset((149 - other).tolist()[n]) for n in range(1024)}
    assert len(np.unique(pairs)) == 150  # each field has some
