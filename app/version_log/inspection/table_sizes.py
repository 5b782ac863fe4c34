"""The sizes of a version's tables, as far as they are known without reading rows: what its base holds."""

from dataclasses import dataclass

from springtide.app.version_log.read.row_image import RowImage


@dataclass(frozen=True)
class TableSize:
    """A table, and its rows and bytes in the base of a version."""

    name: str  # empty: the main table
    dim: int
    state_width: int  # numbers beside the vector: the optimizer's state and the wide part's
    wide_width: int  # of these, the wide part's
    features: tuple[str, ...]  # that have their rows here; empty: all that no other table holds
    rows: int
    bytes: int


def table_sizes(image: RowImage) -> list[TableSize]:
    """Return the tables of a version, the main one first."""
    names, manifest = image.schema.row_names(), image.base.manifest
    return [
        TableSize(
            table.name,
            table.spec.dim,
            table.spec.state_width,
            table.spec.wide_width,
            tuple(names[number] for number in table.spec.features),
            len(table.base_rows(image.base)),
            manifest.table_bytes(table.name),
        )
        for table in image.tables
    ]
