"""Criteo-shaped click logs for benchmarks: 26 categorical features (Zipf 1.05), 13 dense ones, a learnable label."""

import json

import numpy as np

from springtide_client.schema import Schema

CATEGORICAL = tuple(f"c{number}" for number in range(1, 27))
DENSE = tuple(f"i{number}" for number in range(1, 14))
IDS_PER_FEATURE = 200_000
SCHEMA = Schema(labels=("click",), categorical=CATEGORICAL, dense=DENSE)
TOPIC = "clicks"


def zipf_ids(random: np.random.Generator, shape: tuple[int, ...], *, exponent: float = 1.05) -> np.ndarray:
    """Return ids 0..IDS_PER_FEATURE - 1 with frequency proportional to (id + 1) ** -exponent."""
    weights = np.arange(1, IDS_PER_FEATURE + 1, dtype=np.float64) ** -exponent
    bounds = np.cumsum(weights) / weights.sum()
    return np.searchsorted(bounds, random.random(shape)).astype(np.int64)


def make_clicks(number: int, *, seed: int = 0, num_categorical: int = 26, num_dense: int = 13) -> list[bytes]:
    """Return records as JSON, about 500 bytes each; the label depends on two features' ids and one number.

    They may have fewer fields, the first ones.
    """
    random = np.random.default_rng(seed)
    ids_NC = zipf_ids(random, (number, num_categorical))
    dense_NF = np.round(random.lognormal(1.0, 1.0, (number, num_dense)), 3)
    lean_N = np.sin(ids_NC[:, 0] * 1.7) + np.cos(ids_NC[:, 1] * 0.9) - 1.5
    if num_dense:
        lean_N += 0.3 * np.log(dense_NF[:, 0])
    labels_N = (random.random(number) < 1 / (1 + np.exp(-lean_N))).astype(int)
    return [
        json.dumps(
            dict(zip(CATEGORICAL, ids, strict=False)) | dict(zip(DENSE, numbers, strict=False)) | {"click": label},
            separators=(",", ":"),
        ).encode()
        for ids, numbers, label in zip(ids_NC.tolist(), dense_NF.tolist(), labels_N.tolist(), strict=True)
    ]
