"""The keys that a batch looks up in its table, and where each one's gradient stands among those of a net's inputs."""

# N samples, C categorical features, P lists, M elements of all lists, F features, K keys, U unique ones,
# B rows of gradients, D dense features with bins, or the dimension of rows
from typing import Any

import numpy as np

from springtide.kernels.njit import njit


@njit(nogil=True, cache=True)
def batch_keys(
    numbers_F: Any, categorical_NC: Any, elements_M: Any, offsets_PN1: Any, bins_ND: Any, event_ms_N: Any
) -> tuple[Any, Any, Any]:
    """Return features_K, ids_K and event_ms_K: categorical ids sample by sample, each list's elements, then bins.

    `numbers_F`: of the features, in this order.
    """
    (num_samples, num_categorical), num_lists, num_bins = categorical_NC.shape, len(offsets_PN1), bins_ND.shape[1]
    num_keys = num_samples * (num_categorical + num_bins) + len(elements_M)
    features_K, ids_K, event_ms_K = (
        np.empty(num_keys, np.uint16),
        np.empty(num_keys, np.int64),
        np.empty(num_keys, np.int64),
    )
    k = element = 0
    for n in range(num_samples):
        for c in range(num_categorical):
            features_K[k], ids_K[k], event_ms_K[k] = numbers_F[c], categorical_NC[n, c], event_ms_N[n]
            k += 1
    for p in range(num_lists):
        for n in range(num_samples):
            for _ in range(offsets_PN1[p, n], offsets_PN1[p, n + 1]):
                features_K[k], ids_K[k] = numbers_F[num_categorical + p], elements_M[element]
                event_ms_K[k] = event_ms_N[n]
                k, element = k + 1, element + 1
    for n in range(num_samples):
        for d in range(num_bins):
            features_K[k], ids_K[k] = numbers_F[num_categorical + num_lists + d], bins_ND[n, d]
            event_ms_K[k] = event_ms_N[n]
            k += 1
    return features_K, ids_K, event_ms_K


@njit(nogil=True, cache=True)
def gradient_rows(
    num_samples: int, num_categorical: int, offsets_PN1: Any, is_mean_P: Any, num_keys: int
) -> tuple[Any, Any]:
    """Return for each key the row of its gradient, int64 (K), and the factor of that, float32 (K).

    A sample has rows for its categorical features, then one for each list; a last row is that of all keys after these,
    which have no gradient.
    """
    rows_K, scales_K = np.empty(num_keys, np.int64), np.ones(num_keys, np.float32)
    width, k = num_categorical + len(is_mean_P), 0
    for n in range(num_samples):
        for c in range(num_categorical):
            rows_K[k] = n * width + c
            k += 1
    for p in range(len(is_mean_P)):
        for n in range(num_samples):
            length = offsets_PN1[p, n + 1] - offsets_PN1[p, n]
            scale = np.float32(1) / np.float32(max(length, 1)) if is_mean_P[p] else np.float32(1)
            for _ in range(length):
                rows_K[k], scales_K[k] = n * width + num_categorical + p, scale
                k += 1
    rows_K[k:] = num_samples * width
    return rows_K, scales_K


@njit(nogil=True, cache=True)
def sum_gradients(grads_BD: Any, rows_K: Any, scales_K: Any, inverse_K: Any, num_unique: int) -> Any:
    """Return the sums of the keys' gradients for each unique key, float32 (U, D), in the order of the batch."""
    sums_UD = np.zeros((num_unique, grads_BD.shape[1]), np.float32)
    for k in range(len(inverse_K)):
        u, row, scale = inverse_K[k], rows_K[k], scales_K[k]
        for d in range(grads_BD.shape[1]):
            sums_UD[u, d] += scale * grads_BD[row, d]
    return sums_UD
