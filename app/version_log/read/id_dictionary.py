"""The texts behind hashed ids at one version: the base's, found in its file, and those that came since."""

# K keys asked for
import numpy as np
import numpy.typing as npt
from springtide_client.format.tensors import Arrays
from springtide_client.keys import MISSING_ID
from springtide_client.log.base import Base
from springtide_client.rows.layers import Int64Array, UInt16Array, empty_layer

from app.version_log.read.id_strings import id_strings_of, merge_id_strings
from app.version_log.read.version_range import VersionRange

Indices = npt.NDArray[np.intp]


class IdDictionary:
    """Knows every text of a base and of a stretch of versions behind it."""

    def __init__(self, base: Base, stretch: VersionRange) -> None:
        since = [texts for tensors in stretch.tensors_with("texts.id") if (texts := id_strings_of(tensors)) is not None]
        merged = merge_id_strings(since, empty_layer(0))
        self._parts = [part for part in (base.id_strings, merged) if part is not None]

    def find(self, features_K: UInt16Array, ids_K: Int64Array) -> list[str | None]:
        """The string of each key; None where the id is a number, or its string is not known."""
        found: list[str | None] = [None] * len(ids_K)
        for part in self._parts:
            for k, string in enumerate(strings_of(part, features_K, ids_K)):
                found[k] = string if string is not None else found[k]
        return found


def strings_of(part: Arrays, features_K: UInt16Array, ids_K: Int64Array) -> list[str | None]:
    """The string of each key in columns that are sorted by (feature, id); None where the key is not in them."""
    strings: list[str | None] = [None] * len(ids_K)
    places_K = find_id_strings(part, features_K, ids_K)
    offsets, content = part["offsets"], part["bytes"]
    for k in np.flatnonzero(places_K >= 0).tolist():
        start, end = offsets[places_K[k] : places_K[k] + 2].tolist()
        strings[k] = content[start:end].tobytes().decode()
    return strings


def find_id_strings(part: Arrays, features_K: UInt16Array, ids_K: Int64Array) -> Indices:
    """Where each key stands in columns that are sorted by (feature, id); -1 where it does not."""
    places_K = np.full(len(ids_K), -1, np.intp)
    for feature in np.unique(features_K).tolist():
        first, end = np.searchsorted(part["feature"], np.array([feature, feature + 1])).tolist()
        if first == end:
            continue
        keys = np.flatnonzero(features_K == feature)
        ids = part["id"][first:end]
        found = np.minimum(np.searchsorted(ids, ids_K[keys]), len(ids) - 1)
        places_K[keys] = np.where(ids[found] == ids_K[keys], first + found, -1)
    return places_K


def display_id(row_id: int, text: str | None) -> str:
    """How people see an id."""
    if row_id == MISSING_ID:
        return "(missing)"
    return str(row_id) if text is None else text
