"""The wide part's own arrays in another design: gates, weights, statistics go on by field, pair, label, number."""

# The last part of an array's name is its axes, as in springtide_client.wide.parameters:
# L labels, F fields, P pairs of fields, T types of slots (F + P), D dense features, X numbers of a sample (2 D)
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from springtide_client.array_types import Indices
from springtide_client.format.tensors import Array, Arrays
from springtide_client.schema import Schema
from springtide_client.wide.parameters import PREFIX

WIDE = f"dense.{PREFIX}"
OF_THE_SCHEMA = ("numbers_F", "pair_fields_P2")  # they say what the places of the other arrays mean


class Places(NamedTuple):
    """Where what goes on was along an axis, and where it is now."""

    old: Indices
    new: Indices

    @staticmethod
    def of(pairs: list[tuple[int, int]]) -> "Places":
        return Places(np.array([old for old, _ in pairs], np.intp), np.array([new for _, new in pairs], np.intp))


def carry_wide(
    arrays: Arrays, otherwise: Arrays, old: Schema, new: Schema, numbers: Mapping[int, int]
) -> dict[str, Array]:
    """Return the wide part's arrays of the new design by full name: those of a version where they go on.

    `otherwise` has them as they begin. `numbers`: the feature number of each kept feature, by its old number. {} where
    either has no wide part.
    """
    before, begun = _wide(arrays), _wide(otherwise)
    if not before or before.keys() != begun.keys():
        return {f"{WIDE}{name}": array for name, array in begun.items()}
    axes = _places(before, begun, old, new, numbers)
    carried = {}
    for name, array in begun.items():
        carried[f"{WIDE}{name}"] = array if name in OF_THE_SCHEMA else _carry(name, before[name], array, axes)
    return carried


def _carry(name: str, before: Array, begun: Array, axes: Mapping[str, Places]) -> Array:
    letters = name.rpartition("_")[2]
    if len(letters) != before.ndim or before.ndim != begun.ndim:
        return begun
    places = [axes.get(letter) for letter in letters]
    if any(place is None and before.shape[axis] != begun.shape[axis] for axis, place in enumerate(places)):
        return begun
    same = [np.arange(size) for size in begun.shape]
    old = [same[axis] if place is None else place.old for axis, place in enumerate(places)]
    new = [same[axis] if place is None else place.new for axis, place in enumerate(places)]
    carried = np.array(begun)
    carried[np.ix_(*new)] = before[np.ix_(*old)]
    return carried


def _places(before: Arrays, begun: Arrays, old: Schema, new: Schema, numbers: Mapping[int, int]) -> dict[str, Places]:
    now = {number: place for place, number in enumerate(begun["numbers_F"].tolist())}
    fields = {
        place: now[numbers[number]]
        for place, number in enumerate(before["numbers_F"].tolist())
        if numbers.get(number) in now
    }
    pairs_now = {frozenset(pair): place for place, pair in enumerate(begun["pair_fields_P2"].tolist())}
    pairs = []
    for place, pair in enumerate(before["pair_fields_P2"].tolist()):
        same = frozenset(fields.get(field, -1) for field in pair)
        if same in pairs_now:
            pairs.append((place, pairs_now[same]))
    num_old, num_new = len(before["numbers_F"]), len(begun["numbers_F"])
    dense = [(old.dense.index(name), place) for place, name in enumerate(new.dense) if name in old.dense]
    return {
        "L": Places.of(
            [(old.labels.index(name), place) for place, name in enumerate(new.labels) if name in old.labels]
        ),
        "F": Places.of(list(fields.items())),
        "P": Places.of(pairs),
        "T": Places.of([*fields.items(), *((num_old + was, num_new + is_now) for was, is_now in pairs)]),
        "D": Places.of(dense),
        "X": Places.of([(2 * was + part, 2 * is_now + part) for was, is_now in dense for part in (0, 1)]),
    }


def _wide(arrays: Arrays) -> Arrays:
    return {name.removeprefix(WIDE): array for name, array in arrays.items() if name.startswith(WIDE)}
