"""Export a version as plain tensors in one torch.save file; `torch.load(path, weights_only=True)` reads it."""

# n rows of a feature, D dimension of its rows
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from springtide.app.version_log.export.arrow_parquet import description
from springtide.app.version_log.read.id_dictionary import IdDictionary, feature_name
from springtide.app.version_log.read.row_image import RowImage
from springtide_client.rows.row_layer import RowLayer

COLUMNS = {"id": "id", "vector": "value", "count": "count", "last_seen_ms": "last_seen"}
TYPES = {"id": np.int64, "vector": np.float32, "count": np.int64, "last_seen_ms": np.int64, "lengths": np.int64}


def write_torch(image: RowImage, path: Path, feature: int | None, *, with_rows: bool) -> int:
    """`{"manifest": JSON, "dense": {name: tensor}, "rows": {feature: {column: tensor}}}`; returns the number of rows.

    Columns: `id` (n), `vector` (n, D), `count` (n), `last_seen_ms` (n); if the feature has string ids also
    `id_string_bytes` and `id_string_offsets` (n + 1): row i has `id_string_bytes[offsets[i]:offsets[i + 1]]`, empty if
    its id is a number. With one feature there is no dense part.
    """
    dense = {} if feature is not None else image.dense()
    document: dict[str, Any] = {
        "manifest": description(image),
        "dense": {name: torch.from_numpy(np.array(array)) for name, array in dense.items()},
    }
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        columns = _Columns(Path(folder))
        finder = IdDictionary(image.base, image.versions)
        for rows in image.rows(feature) if with_rows else ():
            for number in np.unique(rows.feature).tolist():
                columns.add(number, rows.take(np.flatnonzero(rows.feature == number)), finder)
        document["rows"] = {
            feature_name(image.schema, number): columns.tensors(number) for number in sorted(columns.num_rows)
        }
        with path.open("wb") as file:  # a file object: with a path torch.save hides the OSError of a full disk
            torch.save(document, file)
    return sum(columns.num_rows.values())


class _Columns:
    """Collects columns in temporary files, so that the rows need not fit into memory."""

    def __init__(self, folder: Path) -> None:
        self.num_rows: dict[int, int] = {}
        self._folder = folder
        self._dims: dict[int, int] = {}

    def add(self, number: int, rows: RowLayer, finder: IdDictionary) -> None:
        """Append rows of one feature."""
        strings = [b"" if string is None else string.encode() for string in finder.find(rows.feature, rows.id)]
        for name, column in COLUMNS.items():
            self._append(number, name, np.asarray(getattr(rows, column), TYPES[name], order="C").tobytes())
        self._append(number, "lengths", np.array([len(string) for string in strings], np.int64).tobytes())
        self._append(number, "strings", b"".join(strings))
        self._dims[number] = rows.dim
        self.num_rows[number] = self.num_rows.get(number, 0) + len(rows)

    def tensors(self, number: int) -> dict[str, torch.Tensor]:
        """Return the columns of a feature."""
        arrays = {name: np.memmap(self._folder / f"{number}.{name}", dtype, "c") for name, dtype in TYPES.items()}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if name in COLUMNS}
        tensors["vector"] = tensors["vector"].reshape(-1, self._dims[number])
        lengths = arrays["lengths"]
        if lengths.any():
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            content = np.memmap(self._folder / f"{number}.strings", np.uint8, "c")
            tensors |= {"id_string_bytes": torch.from_numpy(content), "id_string_offsets": torch.from_numpy(offsets)}
        return tensors

    def _append(self, number: int, name: str, content: bytes) -> None:
        with (self._folder / f"{number}.{name}").open("ab") as file:
            file.write(content)
