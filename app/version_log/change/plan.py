"""What a start with other settings keeps of a log's newest version, what is reset, and what it drops."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from springtide_client.format.tensors import Array
from springtide_client.log.base import Base, ModelIdentity, TableSpec
from springtide_client.schema import Schema

DENSE = "dense."


class ArrayForm(NamedTuple):
    """What two parameters must share for one to take the other's values."""

    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(array: Array) -> "ArrayForm":
        return ArrayForm(tuple(array.shape), array.dtype.str)


@dataclass(frozen=True)
class Design:
    """Everything that decides what rows and parameters mean. A log holds that of its newest version."""

    schema: Schema
    table: TableSpec
    model: ModelIdentity
    dense: Mapping[str, ArrayForm]  # parameters and buffers of the net, by their names in the net

    @staticmethod
    def of(base: Base) -> "Design":
        """Return the design that a base, and the versions after it, were written with."""
        manifest = base.manifest
        dense = {name.removeprefix(DENSE): ArrayForm.of(array) for name, array in base.dense.items()}
        return Design(manifest.decode_schema(), manifest.table, manifest.model, dense)


@dataclass(frozen=True)
class Plan:
    """`kept`, `begun` and `dropped` are lines for people; the rest is what `carry` goes by."""

    kept: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()  # the settings that differ; none: there is nothing to do
    keeps_values: bool = True  # of rows; else they take first values again
    keeps_states: bool = True  # of rows
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


def plan_change(old: Design, new: Design) -> Plan:
    """Compare two designs. `new.schema` is numbered as the one after `old.schema` (`Schema.continuing`)."""
    changes = tuple(changed_settings(old, new))
    keeps_values = old.table.dim == new.table.dim
    keeps_states = keeps_values and optimizer_name(old.table) == optimizer_name(new.table)
    keeps_optimizer = old.model.optimizer == new.model.optimizer
    fits = {name for name, form in new.dense.items() if old.dense.get(name) == form}
    moved = moved_fields(old.schema, new.schema)
    dense = frozenset() if moved else frozenset(fits)
    kept: list[str] = ["the positions in the stream, the event clock and the counts of samples and dead letters"]
    begun: list[str] = []
    dropped: list[str] = []
    for line, group in _features(old, new, keeps_values=keeps_values, keeps_states=keeps_states):
        {"kept": kept, "begun": begun, "dropped": dropped}[group].append(line)
    for line, group in _labels(old.schema, new.schema):
        {"kept": kept, "begun": begun, "dropped": dropped}[group].append(line)
    if dense:
        kept.append(f"{_parameters(dense)} of the net")
    if fresh := new.dense.keys() - dense:
        why = f": their inputs have changed places ({', '.join(moved)})" if moved else ""
        begun.append(f"{_parameters(fresh)} of the net{why}")
    if gone := old.dense.keys() - new.dense.keys():
        dropped.append(f"{_parameters(gone)} of the net")
    if dense and keeps_optimizer:
        kept.append("the dense optimizer's state of those parameters")
    elif not keeps_optimizer:
        begun.append(f"the state of the dense optimizer ({old.model.optimizer}, now {new.model.optimizer})")
    return Plan(tuple(kept), tuple(begun), tuple(dropped), changes, keeps_values, keeps_states, keeps_optimizer, dense)


def changed_settings(old: Design, new: Design) -> Iterator[str]:
    """Yield the settings that differ, as the configuration names them."""
    before, after = msgspec.to_builtins(old.schema), msgspec.to_builtins(new.schema)
    sections = {"max_length": "[features.*]", "pooling": "[features.*]"}
    for key in before:
        if key not in ("numbers", "next_number") and before[key] != after[key]:
            yield f"{sections.get(key, '[schema]')} {key}"
    pairs = {
        "[table] dim": (old.table.dim, new.table.dim),
        "[table] dtype": (old.table.dtype, new.table.dtype),
        "[table] optimizer": (optimizer_name(old.table), optimizer_name(new.table)),
        "[table] init_scale": (old.table.init_scale, new.table.init_scale),
        "[train] seed": (old.table.seed, new.table.seed),
        "[train] optimizer": (old.model.optimizer, new.model.optimizer),
        "[model] name": (old.model.name, new.model.name),
        "[model] options": (old.model.options, new.model.options),
    }
    for key, (was, now) in pairs.items():
        if was != now:
            yield f"{key} ({was!r}, now {now!r})"
    named = old.schema, old.model.name, old.model.options, old.table.dim
    if named == (new.schema, new.model.name, new.model.options, new.table.dim) and old.dense != new.dense:
        yield "the code of the net, whose parameters differ"


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


def optimizer_name(table: TableSpec) -> str:
    """Return the name of the row optimizer, which decides what the rows' states mean."""
    return str(table.optimizer.get("name", "rowwise-adagrad"))


def _features(old: Design, new: Design, *, keeps_values: bool, keeps_states: bool) -> Iterator[tuple[str, str]]:
    """Yield a line for each feature that has rows before or after, and its group."""
    before, after = old.schema.owner_names(), new.schema.owner_names()
    counts = "counts, last-seen times and admission"
    for number, name in after.items():
        if before.get(number, name) != name:
            name = f"{name}, those of {before[number]} until now"
        if number not in before:
            known = name in old.schema.features
            yield f"rows of {name}" + (f", which shared those of {old.schema.share[name]}" if known else ""), "begun"
        elif keeps_states:
            yield f"rows of {name}, with optimizer states, {counts}", "kept"
        elif keeps_values:
            yield f"rows of {name}, with {counts}", "kept"
            yield f"optimizer states of the rows of {name}", "begun"
        else:
            yield f"{counts} of the rows of {name}", "kept"
            yield f"vectors and optimizer states of the rows of {name}, from their first values", "begun"
    for number, name in before.items():
        if number not in after:
            owner = new.schema.share.get(name)
            yield f"rows of {name}" + (f", which now shares those of {owner}" if owner else ""), "dropped"


def _labels(old: Schema, new: Schema) -> Iterator[tuple[str, str]]:
    for label in new.labels:
        yield f"scores of {label}", "kept" if label in old.labels else "begun"
    for label in old.labels:
        if label not in new.labels:
            yield f"scores of {label}", "dropped"


def _parameters(names: Mapping[str, Any] | frozenset[str] | set[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
    return f"{len(shown)} parameters and buffers ({', '.join(shown[:6])}{more})"
