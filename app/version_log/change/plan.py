"""The meaning of a log's rows and parameters, and what a start with other settings keeps, resets, drops."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from springtide.app.version_log.tables import LogTable, table_holding, tables_from
from springtide_client.format.tensors import Array
from springtide_client.keys import CROSSES
from springtide_client.log.base import Base, ModelIdentity, TableSpec
from springtide_client.schema import Schema
from springtide_client.wide.parameters import PREFIX

DENSE = "dense."
TASK_WEIGHTS = "task_weights."
CROSSES_TABLE = "crosses"  # its rows have the numbers of one pair of ids, by label


class ArrayForm(NamedTuple):
    """The form that two parameters must share for one to take the other's values."""

    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(array: Array) -> "ArrayForm":
        return ArrayForm(tuple(array.shape), array.dtype.str)


@dataclass(frozen=True)
class ModelSignature:
    """Everything that decides what rows and parameters mean. A log holds that of its newest version."""

    schema: Schema
    table: TableSpec
    model: ModelIdentity
    dense: Mapping[str, ArrayForm]  # parameters and buffers of the net, by their names in the net
    tables: Mapping[str, TableSpec] = field(default_factory=dict)  # beside the main one

    @staticmethod
    def of(base: Base) -> "ModelSignature":
        """Return the signature that a base, and the versions after it, were written with."""
        manifest = base.manifest
        dense = {name.removeprefix(DENSE): ArrayForm.of(array) for name, array in base.dense.items()}
        return ModelSignature(manifest.decode_schema(), manifest.table, manifest.model, dense, manifest.tables)

    @property
    def net(self) -> dict[str, ArrayForm]:
        """The parameters and buffers without those of the wide part, which are compared by field."""
        return {name: form for name, form in self.dense.items() if not name.startswith(PREFIX)}

    def numbered_as(self, schema: Schema) -> "ModelSignature":
        """Return the same signature with the feature numbers of another numbering of its schema."""
        names = self.schema.row_names()
        numbers = {name: feature for feature, name in schema.row_names().items()}
        tables = {
            name: replace(spec, features=[numbers[names[n]] for n in spec.features])
            for name, spec in self.tables.items()
        }
        return ModelSignature(schema, self.table, self.model, self.dense, tables)

    @cached_property
    def physical_tables(self) -> tuple[LogTable, ...]:
        """The tables, the main one first."""
        return tables_from(self.table, self.tables)

    @property
    def widest_dim(self) -> int:
        """The width of the rows that the net sees."""
        seen = {self.table_of(self.schema.number(name)).spec.dim for name in self.schema.owners}
        return max([self.table.dim, *seen])

    @property
    def dims(self) -> dict[int, int]:
        """The width of rows by feature number; empty where all have the main table's."""
        if not self.tables:
            return {}
        return {feature: self.table_of(feature).spec.dim for feature in map(self.schema.number, self.schema.owners)}

    @property
    def is_wide(self) -> bool:
        """True if rows have numbers of the wide part."""
        return self.table.wide_width > 0

    @property
    def task_weights(self) -> str:
        """How labels are weighed against each other: by learned uncertainty if the net has parameters for it."""
        return "uncertainty" if any(name.startswith(TASK_WEIGHTS) for name in self.dense) else "fixed"

    @property
    def has_crosses(self) -> bool:
        """True if the wide part learns crosses of fields, in a table of their own or among the other rows."""
        pairs = self.dense.get(f"{PREFIX}pair_fields_P2")
        return CROSSES_TABLE in self.tables or (pairs is not None and pairs.shape[0] > 0)

    def table_of(self, feature: int) -> LogTable:
        """Return the table that holds the rows of a feature."""
        return table_holding(self.physical_tables, feature)


def keeps_vectors(old: TableSpec, new: TableSpec) -> bool:
    """Return True if the rows of one table can go on in another with their vectors."""
    return old.dim == new.dim


def keeps_states(old: TableSpec, new: TableSpec) -> bool:
    """Return True if the rows of one table can go on in another with their optimizer states."""
    return keeps_vectors(old, new) and optimizer_name(old) == optimizer_name(new)


def keeps_crosses(old: ModelSignature, new: ModelSignature) -> bool:
    """Return True if rows of crosses go on: both designs have them, in a table of their own or not."""
    return old.has_crosses and new.has_crosses and (CROSSES_TABLE in old.tables) == (CROSSES_TABLE in new.tables)


def optimizer_name(table: TableSpec) -> str:
    """Return the name of the row optimizer, which decides what the rows' states mean."""
    return str(table.optimizer.get("name", "rowwise-adagrad"))


def row_owners(signature: ModelSignature) -> dict[int, str]:
    """Return the features that have rows, by number; dense and bias ones have rows in the wide part."""
    return {
        feature: name
        for feature, name in signature.schema.row_names().items()
        if feature != CROSSES and (signature.is_wide or name not in (*signature.schema.dense, *signature.schema.bias))
    }


@dataclass(frozen=True)
class Plan:
    """`kept`, `begun` and `dropped` are lines for people; the rest is what `Migration` goes by."""

    kept: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()  # the settings that differ; none: there is nothing to do
    keeps_optimizer: bool = True  # of the dense net
    dense: frozenset[str] = frozenset()  # the parameters and buffers that go on

    def __bool__(self) -> bool:
        return bool(self.changes)

    def document(self) -> dict[str, Any]:
        """Return the lines as a version records them."""
        return {
            "changed": list(self.changes),
            "kept": list(self.kept),
            "begun": list(self.begun),
            "dropped": list(self.dropped),
        }

    def lines(self) -> Iterator[str]:
        """Yield the plan line by line."""
        for word, items in (("keeps", self.kept), ("begins", self.begun), ("drops", self.dropped)):
            for item in items:
                yield f"{word} {item}"


def plan_change(old: ModelSignature, new: ModelSignature) -> Plan:
    """Compare two designs. `new.schema` is numbered as the one after `old.schema` (`Schema.continuing`)."""
    changes = tuple(changed_settings(old, new))
    keeps_optimizer = old.model.optimizer == new.model.optimizer
    before, after = old.net, new.net
    fits = {name for name, form in after.items() if before.get(name) == form}
    moved = moved_fields(old.schema, new.schema)
    dense = frozenset() if moved else frozenset(fits)
    kept: list[str] = ["the positions in the stream, the event clock and the counts of samples and dead letters"]
    begun: list[str] = []
    dropped: list[str] = []
    for line, group in (*_features(old, new), *_wide(old, new), *_labels(old.schema, new.schema)):
        {"kept": kept, "begun": begun, "dropped": dropped}[group].append(line)
    if dense:
        kept.append(f"{_parameters(dense)} of the net")
    if fresh := after.keys() - dense:
        why = f": their inputs have changed places ({', '.join(moved)})" if moved else ""
        begun.append(f"{_parameters(fresh)} of the net{why}")
    if gone := before.keys() - after.keys():
        dropped.append(f"{_parameters(gone)} of the net")
    if dense and keeps_optimizer:
        kept.append("the dense optimizer's state of those parameters")
    elif not keeps_optimizer:
        begun.append(f"the state of the dense optimizer ({old.model.optimizer}, now {new.model.optimizer})")
    return Plan(tuple(kept), tuple(begun), tuple(dropped), changes, keeps_optimizer, dense)


def changed_settings(old: ModelSignature, new: ModelSignature) -> Iterator[str]:
    """Yield the settings that differ, as the configuration names them."""
    before, after = msgspec.to_builtins(old.schema), msgspec.to_builtins(new.schema)
    names = {key: f"[features.*] {key}" for key in ("max_length", "pooling", "weighted")}
    names |= {
        "links": "[labels.*] loss",
        "memories": "[memory], [sequences] or [remember]",
        "counters": "[memory] or [counters]",
    }
    names |= dict.fromkeys(("served_values", "serves_sent_bias"), "[bias] serve")
    for key in before:
        if key not in ("numbers", "next_number") and before[key] != after[key]:
            yield names.get(key, f"[schema] {key}")
    pairs = {
        "[table] dim": (old.table.dim, new.table.dim),
        "[table] dtype": (old.table.dtype, new.table.dtype),
        "[table] optimizer": (optimizer_name(old.table), optimizer_name(new.table)),
        "[table] init_scale": (old.table.init_scale, new.table.init_scale),
        "[train] seed": (old.table.seed, new.table.seed),
        "[train] optimizer": (old.model.optimizer, new.model.optimizer),
        "[model] name": (old.model.name, new.model.name),
        "[model] options": (old.model.options, new.model.options),
        "[model] wide": (old.is_wide, new.is_wide),
        "[train] task_weights": (old.task_weights, new.task_weights),
    }
    if old.is_wide and new.is_wide:
        pairs["[model] crosses"] = (old.has_crosses, new.has_crosses)
    for key, (was, now) in pairs.items():
        if was != now:
            yield f"{key} ({was!r}, now {now!r})"
    yield from _changed_tables(old, new)
    if _named(old) == _named(new) and old.dense != new.dense:
        yield "the code of the net, whose parameters differ"
    elif _named(old) == _named(new) and old.table.wide_width != new.table.wide_width:
        yield "the numbers that the wide part keeps beside a row"


def _named(signature: ModelSignature) -> tuple[object, ...]:
    """Return the settings that decide which parameters a net has."""
    dims = {feature: signature.table_of(feature).spec.dim for feature in row_owners(signature)}
    parts = signature.is_wide, signature.has_crosses, signature.task_weights
    return signature.schema, signature.model.name, signature.model.options, dims, parts


def _changed_tables(old: ModelSignature, new: ModelSignature) -> Iterator[str]:
    """Yield the features whose rows have another width or optimizer, unless those of all rows have changed alike."""
    for feature, name in row_owners(new).items():
        if feature in row_owners(old):
            was, now = old.table_of(feature), new.table_of(feature)
            if was.name == now.name == "":
                continue
            if was.spec.dim != now.spec.dim:
                yield f"[features.{name}] dim ({was.spec.dim}, now {now.spec.dim})"
            elif optimizer_name(was.spec) != optimizer_name(now.spec):
                yield f"[features.{name}] optimizer ({optimizer_name(was.spec)!r}, now {optimizer_name(now.spec)!r})"
            elif was.name != now.name:
                yield f"[features.{name}] table ({was.title}, now {now.title})"


def moved_fields(old: Schema, new: Schema) -> list[str]:
    """Return the fields that have another place in a list of the same length.

    Parameters of equal shapes would then be applied to other fields than those they were learned from.
    """
    moved = []
    for role in ("categorical", "multi_value", "sequence", "dense", "labels"):
        before, after = getattr(old, role), getattr(new, role)
        if len(before) == len(after):
            moved += [name for place, name in enumerate(after) if name in before and before.index(name) != place]
    return moved


def _features(old: ModelSignature, new: ModelSignature) -> Iterator[tuple[str, str]]:
    """Yield a line for each feature that has rows before or after, and its group."""
    before, after = row_owners(old), row_owners(new)
    counts = "counts, last-seen times and admission"
    for feature, name in after.items():
        if before.get(feature, name) != name:
            name = f"{name}, those of {before[feature]} until now"
        if feature not in before:
            known = name in old.schema.share
            yield f"rows of {name}" + (f", which shared those of {old.schema.share[name]}" if known else ""), "begun"
            continue
        was, now = old.table_of(feature).spec, new.table_of(feature).spec
        if keeps_states(was, now):
            yield f"rows of {name}, with optimizer states, {counts}", "kept"
        elif keeps_vectors(was, now):
            yield f"rows of {name}, with {counts}", "kept"
            yield f"optimizer states of the rows of {name}", "begun"
        else:
            yield f"{counts} of the rows of {name}", "kept"
            yield f"vectors and optimizer states of the rows of {name}, from their first values", "begun"
    for feature, name in before.items():
        if feature not in after:
            owner = new.schema.share.get(name)
            yield f"rows of {name}" + (f", which now shares those of {owner}" if owner else ""), "dropped"


def _wide(old: ModelSignature, new: ModelSignature) -> Iterator[tuple[str, str]]:
    """Yield what becomes of the numbers that the wide part keeps beside each row, and of its crosses."""
    if old.is_wide or new.is_wide:
        group = _group(old.is_wide, new.is_wide)
        yield "the wide part's weights of those rows", group
        yield "the wide part's gates, statistics and weights of numbers", group
    goes_on = keeps_crosses(old, new)
    for has_crosses, group in ((old.has_crosses, "dropped"), (new.has_crosses, "begun")):
        if has_crosses and not goes_on:
            yield "rows of crosses", group
    if goes_on:
        yield "rows of crosses", "kept"
    if old.is_wide and new.is_wide:
        for label in new.schema.labels:
            if label not in old.schema.labels:
                yield f"the wide part's weights for {label}", "begun"
        for label in old.schema.labels:
            if label not in new.schema.labels:
                yield f"the wide part's weights for {label}", "dropped"


def _group(was: bool, now: bool) -> str:
    return "kept" if was and now else "begun" if now else "dropped"


def _labels(old: Schema, new: Schema) -> Iterator[tuple[str, str]]:
    for label in new.labels:
        is_same = label in old.labels and old.links.get(label) == new.links.get(label)
        yield f"scores of {label}", "kept" if is_same else "begun"
    for label in old.labels:
        if label not in new.labels:
            yield f"scores of {label}", "dropped"


def _parameters(names: Mapping[str, Any] | frozenset[str] | set[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
    return f"{len(shown)} parameters and buffers ({', '.join(shown[:6])}{more})"
