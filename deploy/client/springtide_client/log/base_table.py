"""The rows of one table in a base: mapped files, not loaded. Several files are one array to everybody above."""

# n rows, S width of the optimizer state
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from springtide_client.array_types import Float32Array
from springtide_client.errors import LogError
from springtide_client.format.joined_tensors import FileRows, map_joined
from springtide_client.format.tensors import Array, advise_random_access, map_tensors
from springtide_client.rows.hash_range import ALL_KEYS, HashRange
from springtide_client.rows.row_layer import RowLayer, empty_layer


class BaseTable:
    """One table of an open base, or its rows of one range of keys."""

    def __init__(
        self,
        rows_paths: Sequence[Path],
        optimizer_paths: Sequence[Path],
        *,
        dim: int,
        state_width: int,
        hash_range: HashRange = ALL_KEYS,
    ) -> None:
        """`rows_paths`: the files that have keys of the range, in order; `optimizer_paths`: those with their states.

        LogError when the rows cannot be read, OSError when a file is missing.
        """
        self._optimizer_paths, self._state_width = optimizer_paths, state_width
        self._slices: list[slice | None] = [None] * len(rows_paths)  # which rows of each file these are; None: all
        if not rows_paths:
            self.rows, self.states = empty_layer(dim), np.zeros((0, state_width), np.float32)
            return
        try:
            if not hash_range.is_all:
                self._slices = [hash_range.slice_of(map_tensors(path)["mixed"]) for path in rows_paths]
            arrays = map_joined([FileRows(*file) for file in zip(rows_paths, self._slices, strict=True)])
            fields = [arrays[name] for name in ("mixed", "feature", "id", "value", "count", "last_seen")]
        except KeyError as missing:
            raise LogError(f"{rows_paths[0]} lacks the tensor {missing}") from None
        self.rows = RowLayer(*fields)  # without states

    @cached_property
    def states(self) -> Float32Array:
        """The optimizer states of the rows [n, S]. Mapped on first use: not all servers need the file."""
        if not self._state_width:
            return np.zeros((len(self.rows), 0), np.float32)
        try:
            return map_joined([FileRows(*file) for file in zip(self._optimizer_paths, self._slices, strict=True)])[
                "state"
            ]
        except KeyError as missing:
            raise LogError(f"{self._optimizer_paths[0]} lacks the tensor {missing}") from None

    @cached_property
    def layer(self) -> RowLayer:
        """The rows with their optimizer states."""
        return replace(self.rows, state=self.states)

    def advise_random_access(self, *, with_states: bool) -> None:
        """Turn off the kernel's readahead: lookups read single rows, and in little memory readahead would thrash."""
        rows = self.rows
        columns: list[Array] = [rows.mixed, rows.feature, rows.id, rows.value, rows.count, rows.last_seen]
        if with_states:
            columns.append(self.states)
        for array in {id(array.base): array for array in columns}.values():  # one map may have them all
            advise_random_access(array)
