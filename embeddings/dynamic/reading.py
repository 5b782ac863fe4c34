"""What a model sees of ids outside of training, where rows are read and none is made."""

# K keys of one call, D dimension
import numpy as np
import torch
from springtide_client.first_values import first_values
from springtide_client.keys import SHARED_FEATURE

from embeddings.reading import KNOWN, NOT_ADMITTED, UInt8Array
from embeddings.rows import Float32Array, Int64Array, UInt16Array
from embeddings.table import EmbeddingTable

FEATURE = 0  # the one feature of a module's table


def features_of(ids_K: Int64Array) -> UInt16Array:
    return np.full(len(ids_K), FEATURE, np.uint16)


def predicted_rows(table: EmbeddingTable, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
    """The rows (K, D), and status (K). Without a row: the shared one where the id waits to be admitted,

    else the value it would be created with.
    """
    rows_KD, status_K = table.find(features_of(ids_K), ids_K)
    waits_K = status_K == NOT_ADMITTED
    if waits_K.any():
        shared_1, zero_1 = np.array([FEATURE + SHARED_FEATURE], np.uint16), np.zeros(1, np.int64)
        shared_1D, status_1 = table.find(shared_1, zero_1)
        rows_KD[waits_K] = shared_1D if status_1[0] == KNOWN else first_rows(table, shared_1, zero_1)
    new_K = (status_K != KNOWN) & ~waits_K
    if new_K.any():
        rows_KD[new_K] = first_rows(table, features_of(ids_K[new_K]), ids_K[new_K])
    return rows_KD, status_K


def first_rows(table: EmbeddingTable, features_N: UInt16Array, ids_N: Int64Array) -> Float32Array:
    """The values that the table would create these keys with, as its dtype can hold them."""
    config = table.config
    values_ND = first_values(features_N, ids_N, dim=config.dim, seed=table.seed, scale=config.init_scale)
    if config.dtype == "bfloat16":
        rounded_ND: Float32Array = torch.from_numpy(values_ND).to(torch.bfloat16).to(torch.float32).numpy()
        return rounded_ND
    return values_ND
