"""The hash of what a sample read of memory: of its values and their order, of nothing else."""

from dataclasses import replace

import numpy as np

from springtide_client.features import Features, Ragged
from springtide_client.memory import Memory
from springtide_client.schema import Schema
from springtide_client.signals import first_difference, hash_signals, recalled_features

CLICKED = Memory(name="clicked", of="user", keep=("item", "shop"), last=5, num_values=2, has_gap=True)
FIELDS = [
    Memory(name=f"item.{name}", of="item", keep=(name,), last=1, is_sequence=False)
    for name in ("shop", "price", "tags")
]
MADE = CLICKED.features
SCHEMA = Schema(
    labels=("click",),
    categorical=("user", "item", "shop"),
    multi_value=("tags",),
    sequence=MADE,
    dense=("age", "price"),
    share={"clicked.item": "item", "clicked.shop": "shop"},
    memories=(CLICKED, *FIELDS),
)


def random_features(num: int, seed: int = 0) -> Features:
    rng = np.random.default_rng(seed)
    lists = []
    for _ in SCHEMA.lists:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, num))])
        lists.append(Ragged(rng.integers(-9, 9, offsets[-1]), offsets))
    dense_NF = rng.integers(0, 3, (num, 2)).astype(np.float32)
    dense_NF[rng.random((num, 2)) < 0.2] = np.nan
    return Features(rng.integers(-9, 9, (num, 3)), tuple(lists), dense_NF)


def values_of(features: Features, n: int, name: str) -> tuple[object, ...]:
    """What sample n has of a feature."""
    if name in SCHEMA.categorical:
        return (int(features.categorical_NC[n, SCHEMA.categorical.index(name)]),)
    if name in SCHEMA.dense:
        number = float(features.dense_NF[n, SCHEMA.dense.index(name)])
        return ("missing" if np.isnan(number) else number,)
    ragged = features.lists[SCHEMA.lists.index(name)]
    return tuple(ragged.ids_M[ragged.offsets[n] : ragged.offsets[n + 1]].tolist())


def test_two_samples_have_one_hash_if_and_only_if_they_read_the_same() -> None:
    names = recalled_features(SCHEMA)
    assert names == ("clicked.item", "clicked.shop", "clicked.gap", "shop", "price", "tags")
    features = random_features(3000)
    found: dict[tuple[object, ...], int] = {}
    for n, hashed in enumerate(hash_signals(SCHEMA, features).tolist()):
        key = tuple(values_of(features, n, name) for name in names)
        assert found.setdefault(key, hashed) == hashed
    assert len(set(found.values())) == len(found) > 2900


def test_a_sample_has_the_same_hash_in_any_batch_and_whatever_it_is_beside() -> None:
    features = random_features(50)
    whole = hash_signals(SCHEMA, features)
    alone = [hash_signals(SCHEMA, features.slice(n, n + 1))[0] for n in range(50)]
    assert whole.tolist() == [int(one) for one in alone]
    others = replace(features, categorical_NC=features.categorical_NC.copy(), dense_NF=features.dense_NF.copy())
    others.categorical_NC[:, :2] += 1  # ids and numbers that requests bring
    others.dense_NF[:, 0] += 1
    assert hash_signals(SCHEMA, others).tolist() == whole.tolist()
    assert len(hash_signals(SCHEMA, features.slice(0, 0))) == 0


def test_every_missing_number_is_one() -> None:
    features = random_features(1)
    hashes = set()
    for bits in (0x7FC00000, 0xFFC00000, 0x7F800001):
        features.dense_NF[0, 1] = np.array([bits], np.uint32).view(np.float32)[0]
        hashes.add(int(hash_signals(SCHEMA, features)[0]))
    assert len(hashes) == 1


def test_the_first_feature_that_differs_is_named() -> None:
    features, other = random_features(2000), random_features(2000, seed=1)
    other = replace(other, lists=(other.lists[0], features.lists[1], *other.lists[2:]))  # clicked.item is the same
    ours, theirs = (hash_signals(SCHEMA, one).tolist() for one in (features, other))
    named = 0
    for n in range(2000):
        differing = [
            name for name in recalled_features(SCHEMA) if values_of(features, n, name) != values_of(other, n, name)
        ]
        if not differing:
            assert ours[n] == theirs[n]
            continue
        found = first_difference(SCHEMA, ours[n], theirs[n])
        assert found is None or found in differing  # never one that is equal
        named += found == differing[0]
    assert named > 1880  # a piece of 5 bits is equal by chance in one of 32


def test_more_features_than_bits() -> None:
    memories = tuple(
        Memory(name=f"item.n{k}", of="item", keep=(f"n{k}",), last=1, is_sequence=False) for k in range(40)
    )
    schema = Schema(
        labels=("click",), categorical=("item",), dense=tuple(f"n{k}" for k in range(40)), memories=memories
    )
    features = Features(np.zeros((41, 1), np.int64), (), np.zeros((41, 40), np.float32))
    for k in range(40):
        features.dense_NF[k, k] = 1
    *hashes, base = hash_signals(schema, features).tolist()
    assert len({*hashes, base}) == 41
    named = [first_difference(schema, base, one) for one in hashes]
    assert all(name in (f"n{k}", None) for k, name in enumerate(named))
    assert sum(name is not None for name in named[:32]) > 8
    assert named[32:] == [None] * 8
