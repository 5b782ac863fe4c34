"""Features of some samples as codes of 32 bits, which drift is measured on: ids hashed to 16 bits, numbers in order."""

# N samples, R of them chosen, D columns
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from springtide_client.features import Features
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema

MISSING, ABSENT = 0, 1  # a missing value; a column that did not exist when the sample was seen
Codes = npt.NDArray[np.uint32]
MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)


class Column(NamedTuple):
    """One column of codes: of a categorical feature, of a list's values or its length, or of a number."""

    name: str
    is_number: bool


def columns_of(schema: Schema) -> list[Column]:
    """Return the columns of a schema: categorical, then two for each list, then dense."""
    columns = [Column(name, False) for name in schema.categorical]
    for name in schema.lists:
        columns += [Column(name, False), Column(f"length of {name}", True)]
    return columns + [Column(name, True) for name in schema.dense]


def feature_codes(features: Features, rows_R: npt.NDArray[np.int64], turns_R: npt.NDArray[np.int64]) -> Codes:
    """Return the codes of the samples `rows_R`, uint32 (R, D).

    Of a list one element stands for all: the one whose turn it is, so that over the samples each counts alike.
    """
    parts = [id_codes(features.categorical_NC[rows_R])]
    for ragged in features.lists:
        starts_R = ragged.offsets[rows_R]
        lengths_R = ragged.offsets[rows_R + 1] - starts_R
        values_R = np.full(len(rows_R), MISSING_ID, np.int64)
        full = np.flatnonzero(lengths_R)
        values_R[full] = ragged.ids_M[starts_R[full] + turns_R[full] % lengths_R[full]]
        parts += [id_codes(values_R[:, None]), number_codes(lengths_R.astype(np.float32)[:, None])]
    parts.append(number_codes(features.dense_NF[rows_R]))
    return np.concatenate(parts, axis=1)


def id_codes(ids: npt.NDArray[np.int64]) -> Codes:
    """Return a hash of 16 bits: it does not reveal the id, and few frequent ids share one."""
    words = ids.view(np.uint64) if ids.flags.c_contiguous else np.ascontiguousarray(ids).view(np.uint64)
    hashed = ((words ^ (words >> np.uint64(32))) * MULTIPLIER) >> np.uint64(48)
    return np.where(ids == MISSING_ID, MISSING, hashed % np.uint64(65534) + np.uint64(2)).astype(np.uint32)


def number_codes(values: npt.NDArray[np.float32]) -> Codes:
    """Return codes in the order of the numbers; NaN is MISSING."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    ordered = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))
    return np.where(np.isnan(values), np.uint32(MISSING), ordered)
