"""Migrate rows, the net, and the arrays of the wide part from one signature to another."""

# The last part of an array's name is its axes, as in springtide_client.wide.parameters:
# L labels, F fields, P pairs of fields, T types of slots (F + P), D dense features, X numbers of a sample (2 D)
# n rows
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.scores.changed_labels import with_labels
from springtide.app.version_log.change.plan import (
    CROSSES_TABLE,
    DENSE,
    ModelSignature,
    Plan,
    keeps_crosses,
    keeps_states,
    keeps_vectors,
    row_owners,
)
from springtide.app.version_log.items import ItemLayout
from springtide.app.version_log.read.exact_state import AVERAGE, serve_averages
from springtide.app.version_log.read.id_dictionary import merge_id_strings, take_strings
from springtide.app.version_log.tables import LogTable
from springtide.app.version_log.trainer_meta import ErasureMeta, TrainerMeta
from springtide_client.array_types import Float32Array, Indices
from springtide_client.format.records import VersionMeta
from springtide_client.format.tensors import Array, Arrays
from springtide_client.keys import CROSSES, SHARED_ROW_OFFSET
from springtide_client.log.base import TableSpec
from springtide_client.rows.initial_values import initial_values
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema
from springtide_client.wide.layout import COLUMNS_OF_A_LABEL
from springtide_client.wide.parameters import PREFIX

WIDE = f"dense.{PREFIX}"
OF_THE_SCHEMA = ("numbers_F", "num_bias_1", "pair_fields_P2")  # they say what the places of the other arrays mean
OPTIMIZER, SCORES = "state.optimizer.", "state.scores."
OF_PARAMETERS = (AVERAGE, "state.accumulated.gradient.")
CROSS_COLUMNS = 2  # numbers of a cross for each label


class Places(NamedTuple):
    """Where what goes on was along an axis, and where it is now."""

    old: Indices
    new: Indices

    @staticmethod
    def of(pairs: list[tuple[int, int]]) -> "Places":
        return Places(np.array([old for old, _ in pairs], np.intp), np.array([new for _, new in pairs], np.intp))


def migrate_wide(
    arrays: Arrays, otherwise: Arrays, old: Schema, new: Schema, numbers: Mapping[int, int]
) -> dict[str, Array]:
    """Return the wide part's arrays of the new signature by full name: those of a version where they go on.

    `otherwise` has them as they begin. `numbers`: the feature number of each kept feature, by its old number. {} where
    either has no wide part.
    """
    before, begun = _wide(arrays), _wide(otherwise)
    if not before or before.keys() - OF_THE_SCHEMA != begun.keys() - OF_THE_SCHEMA:
        return {f"{WIDE}{name}": array for name, array in begun.items()}
    axes = _places(before, begun, old, new, numbers)
    migrated = {}
    for name, array in begun.items():
        migrated[f"{WIDE}{name}"] = array if name in OF_THE_SCHEMA else _migrate(name, before[name], array, axes)
    return migrated


def _migrate(name: str, before: Array, begun: Array, axes: Mapping[str, Places]) -> Array:
    letters = name.rpartition("_")[2]
    if len(letters) != before.ndim or before.ndim != begun.ndim:
        return begun
    places = [axes.get(letter) for letter in letters]
    if any(place is None and before.shape[axis] != begun.shape[axis] for axis, place in enumerate(places)):
        return begun
    same = [np.arange(size) for size in begun.shape]
    old = [same[axis] if place is None else place.old for axis, place in enumerate(places)]
    new = [same[axis] if place is None else place.new for axis, place in enumerate(places)]
    migrated = np.array(begun)
    migrated[np.ix_(*new)] = before[np.ix_(*old)]
    return migrated


def _places(before: Arrays, begun: Arrays, old: Schema, new: Schema, numbers: Mapping[int, int]) -> dict[str, Places]:
    now = {feature: place for place, feature in enumerate(begun["numbers_F"].tolist())}
    fields = {
        place: now[numbers[feature]]
        for place, feature in enumerate(before["numbers_F"].tolist())
        if numbers.get(feature) in now
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


def same_numbers(old: Schema, new: Schema) -> dict[int, int]:
    """Return the feature numbers that both schemas have: where `new` continues `old`, they mean the same rows."""
    return {feature: feature for feature in old.row_names().keys() & new.row_names().keys()}


def numbers_by_name(old: Schema, new: Schema) -> dict[int, int]:
    """Return, by old number, the number of the same feature's rows now, also of a feature that was away meanwhile."""
    continued = new.continuing(old).row_names()
    now = {name: feature for feature, name in new.row_names().items() if feature != CROSSES}
    kept = {
        feature: now[continued[feature]] for feature in old.row_names() if feature in continued and feature != CROSSES
    }
    return kept | {CROSSES: CROSSES}


@dataclass(frozen=True)
class Migration:
    """From one signature to another. `numbers`: the feature number of what is kept, by its old number."""

    old: ModelSignature
    new: ModelSignature
    plan: Plan
    numbers: Mapping[int, int]

    def has_rows_for(self, source: LogTable, target: LogTable) -> bool:
        """Return True if features whose rows are in `source` have them in `target` from now on."""
        old, new = (np.array(list(numbers), np.uint16) for numbers in (self._all_numbers, self._all_numbers.values()))
        return bool((source.holds(old) & target.holds(new)).any())

    def rows(self, layer: RowBlock, source: LogTable, target: LogTable) -> RowBlock:
        """Return the rows of a table that belong into a table of the new signature, sorted.

        Rows without vectors stay without them.
        """
        numbers_65536 = self._number_table()
        numbers_n = numbers_65536[layer.feature]
        stays_n = numbers_n >= 0
        stays_n[stays_n] = target.holds(numbers_n[stays_n].astype(np.uint16))
        layer = layer.where(stays_n)
        if any(old != new for old, new in self.numbers.items()):
            feature = numbers_65536[layer.feature].astype(np.uint16)
            layer = replace(layer, feature=feature, known_hash=None).in_key_order()
        if layer.value.shape[1] == 0 and source.spec.dim:
            return layer  # keys only
        value, state = self._values(layer, source, target), self._states(layer, source.spec, target.spec)
        return replace(layer, value=value, state=state)

    def _values(self, layer: RowBlock, source: LogTable, target: LogTable) -> Float32Array:
        """Return the vectors, as they are or from first values; of crosses the numbers of the labels that stay."""
        table = target.spec
        if source.name == target.name == CROSSES_TABLE:
            return self._by_label(layer.value, CROSS_COLUMNS)
        if keeps_vectors(source.spec, table):
            return layer.value
        return initial_values(
            layer.feature,
            layer.id,
            dim=table.dim,
            seed=table.seed,
            scale=table.init_scale,
            dtype=table.dtype,
        )

    def _states(self, layer: RowBlock, old: TableSpec, new: TableSpec) -> Float32Array:
        """Return the optimizer states, and behind them the wide part's numbers: those that go on, zeros otherwise."""
        if keeps_states(old, new) and old.wide_width == new.wide_width and self._has_same_labels:
            return layer.state
        states = np.zeros((len(layer), new.state_width), np.float32)
        width, new_width = old.state_width - old.wide_width, new.state_width - new.wide_width
        if keeps_states(old, new):
            states[:, :new_width] = layer.state[:, :width]
        if old.wide_width and new.wide_width:
            states[:, new_width:] = self._by_label(layer.state[:, width:], COLUMNS_OF_A_LABEL)
        return states

    @property
    def _has_same_labels(self) -> bool:
        return self.old.schema.labels == self.new.schema.labels

    def _by_label(self, numbers: Float32Array, num_columns: int) -> Float32Array:
        """Return rows' numbers, `num_columns` a label and then those of no label, by the labels of the new schema."""
        if self._has_same_labels:
            return numbers
        old, new = self.old.schema.labels, self.new.schema.labels
        rest = numbers[:, num_columns * len(old) :]
        migrated = np.zeros((len(numbers), num_columns * len(new) + rest.shape[1]), np.float32)
        migrated[:, num_columns * len(new) :] = rest
        for place, label in enumerate(new):
            if label in old:
                start, before = num_columns * place, num_columns * old.index(label)
                migrated[:, start : start + num_columns] = numbers[:, before : before + num_columns]
        return migrated

    @property
    def _all_numbers(self) -> dict[int, int]:
        """The numbers of the rows that are kept: of bins and crosses only if both designs have them."""
        stay = set(row_owners(self.new))
        if keeps_crosses(self.old, self.new):
            stay.add(CROSSES)
        return {old: new for old, new in self.numbers.items() if new in stay}

    def arrays(self, arrays: Arrays, otherwise: Arrays, *, window_samples: int) -> Arrays:
        """Return `dense.*` and `state.*`: those of a version that go on, and `otherwise` the others."""
        migrated = {name: array for name, array in otherwise.items() if not self._goes_on(name)}
        migrated |= {name: array for name, array in arrays.items() if self._goes_on(name)}
        migrated |= migrate_wide(arrays, otherwise, self.old.schema, self.new.schema, self.numbers)
        return serve_averages(migrated) | self._scores(arrays, window_samples)

    def _goes_on(self, name: str) -> bool:
        """Return True if an array, by its full name, is taken from the old signature, or not at all."""
        if name.startswith(DENSE):  # the wide part's arrays are migrated by fields
            return name.removeprefix(DENSE) in self.plan.dense
        if name.startswith(OPTIMIZER):
            return self.plan.keeps_optimizer and name.removeprefix(OPTIMIZER).rpartition(".")[0] in self.plan.dense
        for prefix in OF_PARAMETERS:
            if name.startswith(prefix):
                return name.removeprefix(prefix) in self.plan.dense
        return not name.startswith(SCORES)  # `_scores` says which of them do

    def id_strings(self, *parts: Arrays | None, dead: RowBlock | None = None) -> Arrays | None:
        """Return the strings of the ids of features that stay, without those of dead rows."""
        merged = merge_id_strings(parts, dead)
        if merged is None:
            return None
        numbers_n = self._number_table()[merged["feature"]]
        kept = take_strings(merged, np.flatnonzero(numbers_n >= 0))
        kept["feature"] = numbers_n[numbers_n >= 0].astype(np.uint16)
        return merge_id_strings([kept])  # sorted by the new numbers

    def items(self, items: Arrays | None) -> Arrays | None:
        """Return the items of a model with two towers, if the new one describes an item by the same features."""
        old, new = ItemLayout.of(self.old.schema, self.old.model), ItemLayout.of(self.new.schema, self.new.model)
        if items is None or old is None or new is None or old.form != new.form:
            return None
        return self.id_strings(items)

    def meta(self, meta: VersionMeta) -> VersionMeta:
        """Return what a version says, as the new one says it: where it stands in the stream, what stays of the rest."""
        trainer = TrainerMeta.of(meta)
        trainer = msgspec.structs.replace(trainer, seeks={}, erasures=self.erasures(trainer.erasures))
        return msgspec.structs.replace(
            meta,
            created_ms=0,
            expiry_cutoffs=self._by_number(meta.expiry_cutoffs),
            admission=self._by_number(meta.admission),
            fingerprint=self.new.schema.fingerprint(),
            scores=_scores_document(meta.scores, self.old.schema, self.new.schema),
            record_ms=[],
            trainer=trainer.to_json(),
            restores=0,
            exact_state=0,
        )

    def erasures(self, erasures: list[ErasureMeta]) -> list[ErasureMeta]:
        """Return the erased keys of the features that stay."""
        kept = []
        for erasure in erasures:
            keys = [(self.numbers[feature], row_id) for feature, row_id in erasure.keys if feature in self.numbers]
            if keys:
                kept.append(msgspec.structs.replace(erasure, keys=keys))
        return kept

    def _number_table(self) -> npt.NDArray[np.int64]:
        """Return by old number, also of shared rows, the new one; -1 where the rows do not stay."""
        table_65536 = np.full(1 << 16, -1, np.int64)
        for old, new in self._all_numbers.items():
            table_65536[old], table_65536[old + SHARED_ROW_OFFSET] = new, new + SHARED_ROW_OFFSET
        return table_65536

    def _by_number(self, values: Mapping[str, int]) -> dict[str, int]:
        known = {int(feature): value for feature, value in values.items()}
        return {str(self.numbers[feature]): value for feature, value in known.items() if feature in self.numbers}

    def _scores(self, arrays: Arrays, window_samples: int) -> Arrays:
        """Return the scores of the labels that stay; other labels have no sample yet."""
        # a label that becomes a value, or one no more, is another label
        old, new = ([(n, schema.links.get(n)) for n in schema.labels] for schema in (self.old.schema, self.new.schema))
        state = {name.removeprefix(SCORES): array for name, array in arrays.items() if name.startswith(SCORES)}
        migrated = with_labels(state, old, new, window_samples=window_samples)
        return {f"{SCORES}{name}": array for name, array in migrated.items()}


def _scores_document(document: dict[str, object], old: Schema, new: Schema) -> dict[str, object]:
    """Return the figures of the first label that stays; the next version has those of all."""
    if (old.labels, old.links) == (new.labels, new.links):
        return document
    tasks = document.get("tasks", {old.labels[0]: document})
    assert isinstance(tasks, dict)
    same = [label for label in new.labels if old.links.get(label) == new.links.get(label)]
    kept = {label: tasks[label] for label in same if label in tasks}
    first = kept.get(new.labels[0], {})
    return {**first, "tasks": kept} if len(new.labels) > 1 else dict(first)
