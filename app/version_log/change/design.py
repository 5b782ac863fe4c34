"""The meaning of rows and parameters: everything of the settings that a log's contents depend on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

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
class Design:
    """Everything that decides what rows and parameters mean. A log holds that of its newest version."""

    schema: Schema
    table: TableSpec
    model: ModelIdentity
    dense: Mapping[str, ArrayForm]  # parameters and buffers of the net, by their names in the net
    tables: Mapping[str, TableSpec] = field(default_factory=dict)  # beside the main one

    @staticmethod
    def of(base: Base) -> "Design":
        """Return the design that a base, and the versions after it, were written with."""
        manifest = base.manifest
        dense = {name.removeprefix(DENSE): ArrayForm.of(array) for name, array in base.dense.items()}
        return Design(manifest.decode_schema(), manifest.table, manifest.model, dense, manifest.tables)

    @property
    def net(self) -> dict[str, ArrayForm]:
        """The parameters and buffers without those of the wide part, which are compared by field."""
        return {name: form for name, form in self.dense.items() if not name.startswith(PREFIX)}

    def numbered_as(self, schema: Schema) -> "Design":
        """Return the same design with the feature numbers of another numbering of its schema."""
        names = self.schema.row_names()
        numbers = {name: number for number, name in schema.row_names().items()}
        tables = {
            name: replace(spec, features=[numbers[names[n]] for n in spec.features])
            for name, spec in self.tables.items()
        }
        return Design(schema, self.table, self.model, self.dense, tables)

    @cached_property
    def physical_tables(self) -> tuple[LogTable, ...]:
        """The tables, the main one first."""
        return tables_from(self.table, self.tables)

    @property
    def widest_dim(self) -> int:
        """The width of the rows that the net sees."""
        return max([self.table.dim, *(spec.dim for name, spec in self.tables.items() if name != CROSSES_TABLE)])

    @property
    def dims(self) -> dict[int, int]:
        """The width of rows by feature number; empty where all have the main table's."""
        if not self.tables:
            return {}
        return {number: self.table_of(number).spec.dim for number in map(self.schema.number, self.schema.owners)}

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

    def table_of(self, number: int) -> LogTable:
        """Return the table that holds the rows of a feature."""
        return table_holding(self.physical_tables, number)


def keeps_vectors(old: TableSpec, new: TableSpec) -> bool:
    """Return True if the rows of one table can go on in another with their vectors."""
    return old.dim == new.dim


def keeps_states(old: TableSpec, new: TableSpec) -> bool:
    """Return True if the rows of one table can go on in another with their optimizer states."""
    return keeps_vectors(old, new) and optimizer_name(old) == optimizer_name(new)


def keeps_crosses(old: Design, new: Design) -> bool:
    """Return True if rows of crosses go on: both designs have them, in a table of their own or not."""
    return old.has_crosses and new.has_crosses and (CROSSES_TABLE in old.tables) == (CROSSES_TABLE in new.tables)


def optimizer_name(table: TableSpec) -> str:
    """Return the name of the row optimizer, which decides what the rows' states mean."""
    return str(table.optimizer.get("name", "rowwise-adagrad"))


def row_owners(design: Design) -> dict[int, str]:
    """Return the features that have rows, by number; dense ones have rows, of their bins, in the wide part."""
    return {
        number: name
        for number, name in design.schema.row_names().items()
        if number != CROSSES and (design.is_wide or name not in design.schema.dense)
    }
