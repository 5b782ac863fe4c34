"""The tables of a log as those see them who read all of it: each has rows of one width. Most logs have one only."""

# K keys, n rows
from collections.abc import Mapping
from dataclasses import dataclass

from springtide_client.array_types import BoolArray, UInt16Array
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base, BaseManifest, TableSpec
from springtide_client.rows.layers import record_layer
from springtide_client.rows.row_block import RowBlock
from springtide_client.rows.table_names import MAIN_TABLE, ROW_TENSORS, TableNames, record_tensor


@dataclass(frozen=True, eq=False)
class LogTable:
    """One table: its name, its widths, and which features' rows it holds."""

    name: str
    spec: TableSpec
    names: TableNames  # of all tables of the log

    @property
    def title(self) -> str:
        """How it is shown to people."""
        return self.name or "main"

    @property
    def has_optimizer_file(self) -> bool:
        """True if a base has files with its states: not where a table other than the main one has none."""
        return self.name == MAIN_TABLE or self.spec.state_width > 0

    def record_tensor(self, name: str) -> str:
        """Return the full name of one of its tensors in a record, such as `rows.id`."""
        return record_tensor(self.name, name)

    def holds(self, features_K: UInt16Array) -> BoolArray:
        """Return which keys have their rows in this table, by their features."""
        return self.names.holds(self.name, features_K)

    def select(self, layer: RowBlock) -> RowBlock:
        """Return the rows of a layer whose keys this table holds."""
        return layer.where(self.holds(layer.feature))

    def tensors(self, tensors: Arrays) -> Arrays:
        """Return what a record says of this table as if it were the only one: `rows.*`, its keys in `forgotten.*`."""
        return dict(self.names.tensors_of(self.name, tensors))

    def record_layer(self, tensors: Arrays, *, with_states: bool = False, with_values: bool = True) -> RowBlock:
        """Return what a record does to the rows of this table; without values their width is 0."""
        if not with_values and (name := self.record_tensor("rows.value")) in tensors:
            tensors = {**tensors, name: tensors[name][:, :0]}
        dim, state_width = self.spec.dim if with_values else 0, self.spec.state_width if with_states else 0
        return record_layer(tensors, dim, state_width, tables=self.names, table=self.name)

    def base_rows(self, base: Base) -> RowBlock:
        """Return the rows that a base has of this table, without optimizer states."""
        return base.tables[self.name].rows

    def base_layer(self, base: Base) -> RowBlock:
        """Return the rows that a base has of this table, with optimizer states."""
        return base.tables[self.name].layer

    def empty(self) -> RowBlock:
        """Return a layer without rows, as wide as those of this table, with states."""
        return RowBlock.zeros(0, self.spec.dim, self.spec.state_width)

    def row_arrays(self, layer: RowBlock) -> Arrays:
        """Return rows with their states as the tensors of a record; {} for none."""
        if not len(layer):
            return {}
        return {self.record_tensor(f"rows.{name}"): getattr(layer, name) for name in self.record_columns}

    @property
    def record_columns(self) -> tuple[str, ...]:
        """The columns of its rows in a record."""
        names = (name.removeprefix("rows.") for name in ROW_TENSORS)
        return tuple(name for name in names if name != "state" or self.has_optimizer_file)


def is_row_id(name: str) -> bool:
    """Return True for the tensors of a record that have the ids of its rows, one for each table."""
    return name == "rows.id" or name.endswith("/rows.id")


def tables_of(manifest: BaseManifest) -> tuple[LogTable, ...]:
    """Return the tables that a base and the versions after it have, the main one first."""
    return tables_from(manifest.table, manifest.tables)


def tables_from(main: TableSpec, others: Mapping[str, TableSpec]) -> tuple[LogTable, ...]:
    """Return the tables with these specifications, the main one first."""
    names = TableNames({name: spec.features for name, spec in others.items()})
    return tuple(LogTable(name, spec, names) for name, spec in {MAIN_TABLE: main, **others}.items())


def table_holding(tables: tuple[LogTable, ...], feature: int) -> LogTable:
    """Return the table that holds the rows of a feature."""
    name = tables[0].names.name_of(feature)
    return next(table for table in tables if table.name == name)
