"""The wide part's arrays go on by field, pair, label and number, wherever these are in the new signature."""

from dataclasses import replace

import numpy as np
import pytest

from springtide.app.version_log.change.migrate import WIDE, migrate_wide, same_numbers
from springtide_client.schema import Schema
from springtide_client.wide.fields import WideFields
from springtide_client.wide.parameters import WideParameters

OLD = Schema(labels=("click", "buy"), categorical=("user", "item", "shop"), dense=("age", "price"))


def initial(schema: Schema, *, crosses: bool = True) -> WideParameters:
    return WideParameters.initial(WideFields.of(schema), len(schema.dense), len(schema.labels), crosses=crosses)


def learned(schema: Schema) -> WideParameters:
    """Return arrays of which every element differs."""
    rng, begun = np.random.default_rng(1), initial(schema)
    changes = {
        name: rng.permutation(array.size).reshape(array.shape).astype(array.dtype)
        % (2 if array.dtype == np.uint8 else 997)
        for name, array in begun.named().items()
        if name not in ("numbers_F", "num_bias_1", "pair_fields_P2")
    }
    return begun._replace(**changes)


def named(parameters: WideParameters) -> dict[str, np.ndarray]:
    return {f"{WIDE}{name}": array for name, array in parameters.named().items()}


def migrated(old: Schema, new: Schema, was: WideParameters, begun: WideParameters) -> WideParameters:
    arrays = migrate_wide(named(was), named(begun), old, new, same_numbers(old, new))
    found = WideParameters.of({name.removeprefix("dense."): array for name, array in arrays.items()})
    assert found is not None
    return found


def places(schema: Schema, parameters: WideParameters) -> tuple[dict, dict, dict, dict]:
    """Return where fields, pairs, labels and dense features are, by name."""
    names = schema.row_names()
    by_place = [names[number] for number in parameters.numbers_F.tolist()]
    pairs = {
        frozenset(by_place[f] for f in pair): place for place, pair in enumerate(parameters.pair_fields_P2.tolist())
    }
    enumerated = ({name: place for place, name in enumerate(part)} for part in (by_place, schema.labels, schema.dense))
    found, labels, dense = enumerated
    return found, pairs, labels, dense


def test_what_stays_keeps_its_numbers_and_the_rest_begins() -> None:
    new = Schema(labels=("like", "buy"), categorical=("city", "shop", "user"), dense=("price", "weight")).continuing(
        OLD
    )
    was, begun = learned(OLD), initial(new)
    now = migrated(OLD, new, was, begun)
    (fields_was, pairs_was, labels_was, dense_was), (fields_now, pairs_now, labels_now, dense_now) = (
        places(OLD, was),
        places(new, now),
    )
    assert now.slot_totals_4.tolist() == was.slot_totals_4.tolist()
    assert now.numbers_F.tolist() == begun.numbers_F.tolist()
    for label, at in labels_now.items():
        before, source = labels_was.get(label), was if label in labels_was else begun
        assert now.base_L[at] == (source.base_L[at] if before is None else was.base_L[before])
        for field, place in fields_now.items():
            kept = before is not None and field in fields_was
            expected = was.gates_LTB[before, fields_was[field]] if kept else begun.gates_LTB[at, place]
            assert now.gates_LTB[at, place].tolist() == expected.tolist(), (label, field)
            expected = was.seen_weights_LF2[before, fields_was[field]] if kept else begun.seen_weights_LF2[at, place]
            assert now.seen_weights_LF2[at, place].tolist() == expected.tolist()
        for pair, place in pairs_now.items():
            kept = before is not None and pair in pairs_was
            expected = was.gates_LTB[before, 5 + pairs_was[pair]] if kept else begun.gates_LTB[at, 5 + place]
            assert now.gates_LTB[at, 5 + place].tolist() == expected.tolist(), (label, pair)
        for number, place in dense_now.items():
            kept = before is not None and number in dense_was
            for part in (0, 1):
                expected = was.number_weights_LX[before, 2 * dense_was[number] + part] if kept else 0
                assert now.number_weights_LX[at, 2 * place + part] == expected
    for pair, place in pairs_now.items():
        assert now.pair_gains_P[place] == (was.pair_gains_P[pairs_was[pair]] if pair in pairs_was else 0)
    for number, place in dense_now.items():
        source = was.number_statistics_3D[:, dense_was[number]] if number in dense_was else [0, 1, 0]
        assert now.number_statistics_3D[:, place].tolist() == list(source)


@pytest.mark.parametrize("bias", [("place", "layout"), ("layout",)])
def test_bias_fields_come_and_go_and_the_other_fields_go_on(bias: tuple[str, ...]) -> None:
    biased = replace(OLD, bias=("place", "layout"))
    new = replace(OLD, bias=bias).continuing(biased)
    for old, later in ((OLD, biased.continuing(OLD)), (biased, OLD.continuing(biased)), (biased, new)):
        was, begun = learned(old), initial(later)
        now = migrated(old, later, was, begun)
        assert now.num_bias_1.tolist() == begun.num_bias_1.tolist() == [len(later.bias)]
        (fields_was, pairs_was, *_), (fields_now, pairs_now, *_) = places(old, was), places(later, now)
        for field, place in fields_now.items():
            source = was.seen_statistics_3F[:, fields_was[field]] if field in fields_was else [0, 1, 0]
            assert now.seen_statistics_3F[:, place].tolist() == list(source)
        for pair, place in pairs_now.items():
            assert len(pair & {"place", "layout"}) in (0, 2)
            assert now.pair_gains_P[place] == (was.pair_gains_P[pairs_was[pair]] if pair in pairs_was else 0)


def test_crosses_may_be_turned_off_and_on() -> None:
    was = learned(OLD)
    without = migrated(OLD, OLD, was, initial(OLD, crosses=False))
    assert without.gates_LTB.tolist() == was.gates_LTB[:, :5].tolist()
    assert len(without.pair_gains_P) == 0
    again = migrated(OLD, OLD, without, initial(OLD))
    assert again.pair_is_live_P.all()
    assert again.gates_LTB[:, :5].tolist() == was.gates_LTB[:, :5].tolist()


def test_a_log_without_a_wide_part_begins_with_one() -> None:
    begun = initial(OLD)
    assert migrate_wide({}, named(begun), OLD, OLD, {}).keys() == named(begun).keys()
    assert migrate_wide(named(begun), {}, OLD, OLD, {}) == {}
