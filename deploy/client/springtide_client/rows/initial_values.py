"""The initial value of a row: a function of (seed, feature, id) alone, bitwise equal on CPU, GPU and in clients."""

# K keys, D dimension
import numpy as np

from springtide_client.array_types import Float32Array, Int64Array, UInt16Array
from springtide_client.keys import GOLDEN, hash_keys, mix64, mix64_array


def initial_values(
    features_K: UInt16Array,
    ids_K: Int64Array,
    *,
    dim: int,
    seed: int,
    scale: float,
    dtype: str = "float32",
) -> Float32Array:
    """Return the initial rows, float32 (K, dim), uniform in [-scale, scale).

    Element d of a row is (mix64(key hash ^ mix64(seed) + (d + 1) * GOLDEN) >> 40) - 2**23, an integer that float32
    holds exactly, times float32(scale * 2**-23): a single rounding, so that every processor agrees.
    For dtype "bfloat16" the values are then rounded to the nearest bfloat16, ties to even.
    """
    step_D = np.arange(1, dim + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    start_K = hash_keys(features_K, ids_K) ^ np.uint64(mix64(seed & 0xFFFF_FFFF_FFFF_FFFF))
    bits_KD = mix64_array(start_K[:, None] + step_D[None, :]) >> np.uint64(40)
    values_KD = (bits_KD.astype(np.int32) - np.int32(2**23)).astype(np.float32) * np.float32(scale * 2.0**-23)
    return round_to_bfloat16(values_KD) if dtype == "bfloat16" else values_KD


def round_to_bfloat16(values: Float32Array) -> Float32Array:
    """Round finite numbers to the nearest bfloat16, ties to even; returned as float32."""
    bits = values.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF_0000)
    return nearest.view(np.float32)
