"""The fields of the wide part: id features that own rows, then dense features, whose bins are ids."""

# F fields
from dataclasses import dataclass

import numpy as np

from springtide_client.array_types import Int64Array
from springtide_client.schema import Schema


@dataclass(frozen=True, eq=False)
class WideFields:
    """Fields are referred to by their place here; rows and pairs by feature numbers, which outlive the schema.

    A feature that shares another's rows is no field: the weights of those rows belong to the owner.
    """

    names: tuple[str, ...]
    numbers_F: Int64Array

    def __len__(self) -> int:
        return len(self.names)

    @staticmethod
    def of(schema: Schema) -> "WideFields":
        """Return the fields in the order of their slots."""
        numbers = [schema.number(name) for name in schema.owners]
        numbers += [schema.dense_number(name) for name in schema.dense]
        return WideFields((*schema.owners, *schema.dense), np.array(numbers, np.int64))
