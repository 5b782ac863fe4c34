"""The value a row is born with: a function of (seed, feature, id) alone, equal bit by bit in every twin."""

# K keys, D dimension
import numpy as np
import numpy.typing as npt

from springtide_client.keys import GOLDEN, Int64Array, _mix64_array, mix64, mix_keys


def initial_values(
    features_K: npt.NDArray[np.uint16],
    ids_K: Int64Array,
    *,
    dim: int,
    seed: int,
    scale: float,
    dtype: str = "float32",
) -> npt.NDArray[np.float32]:
    """The first rows, float32 (K, dim), uniform in [-scale, scale).

    Element d of a row is (mix64(mixed key ^ mix64(seed) + (d + 1) * GOLDEN) >> 40) - 2**23, an integer that float32
    holds exactly, times float32(scale * 2**-23): one rounding, so that every processor agrees.
    In a table of bfloat16 the numbers are then rounded to its nearest, ties to even.
    """
    step_D = np.arange(1, dim + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    start_K = mix_keys(features_K, ids_K) ^ np.uint64(mix64(seed & 0xFFFF_FFFF_FFFF_FFFF))
    bits_KD = _mix64_array(start_K[:, None] + step_D[None, :]) >> np.uint64(40)
    values_KD = (bits_KD.astype(np.int32) - np.int32(2**23)).astype(np.float32) * np.float32(scale * 2.0**-23)
    return round_to_bfloat16(values_KD) if dtype == "bfloat16" else values_KD


def round_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Finite numbers as the nearest that bfloat16 has, ties to even, in float32."""
    bits = values.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF_0000)
    return nearest.view(np.float32)
