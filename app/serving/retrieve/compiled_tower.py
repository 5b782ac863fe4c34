"""One tower of a version: from the rows and numbers of samples to vectors, compiled."""

# N samples, K keys, D dimension of rows, L lists, F dense features, S layers and one, W weights, O of the vectors
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide.app.models.calibrated_model import MAX_DEVIATIONS, VARIANCE_FLOOR
from springtide.app.models.retrieval.schema_part import SchemaPart
from springtide.kernels.cpu.serving.towers import MAX, MEAN, SUM, encode_samples, encode_samples_holding_gil

FloatArray = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]
POOLINGS = {"mean": MEAN, "sum": SUM, "max": MAX}
FEW_SAMPLES = 256  # other threads wait for so many


@dataclass(frozen=True, eq=False)
class CompiledTower:
    """Immutable. It equals springtide.app.models.retrieval.two_tower.Tower but for rounding."""

    num_categorical: int
    pooling_L: Int64Array
    mean_F: FloatArray
    scale_F: FloatArray
    sizes_S: Int64Array
    weights_W: FloatArray

    @staticmethod
    def of(part: SchemaPart, arrays: Mapping[str, npt.NDArray[np.float32]]) -> "CompiledTower":
        """Return the tower of these fields, whose parameters and statistics are `arrays` by name."""
        pooled = [POOLINGS[part.pooling_of(name)] for name in part.multi_value]
        weights = [name for name in arrays if name.startswith("layers.") and name.endswith(".weight")]
        weights.sort(key=lambda name: int(name.split(".")[1]))
        packed = [
            numbers
            for name in weights
            for numbers in (arrays[name.replace("weight", "bias")], np.ravel(arrays[name].T))
        ]
        seen_F = arrays["normalizer.count_F"] > 0
        scale_F = 1 / np.sqrt(arrays["normalizer.variance_F"] + np.float32(VARIANCE_FLOOR))
        return CompiledTower(
            num_categorical=len(part.categorical),
            pooling_L=np.array([*pooled, *(MEAN for _ in part.sequence)], np.int64),
            mean_F=np.array(arrays["normalizer.mean_F"], np.float32),
            scale_F=np.where(seen_F, scale_F, 0).astype(np.float32),
            sizes_S=np.array([arrays[weights[0]].shape[1], *(len(arrays[name]) for name in weights)], np.int64),
            weights_W=np.concatenate(packed).astype(np.float32),
        )

    @property
    def num_out(self) -> int:
        """The length of a vector."""
        return int(self.sizes_S[-1])

    def vectors(self, rows_KD: FloatArray, offsets_LN1: Int64Array, dense_NF: FloatArray) -> FloatArray:
        """Return vectors of length 1, float32 (N, O), from rows in the order of `lookup_keys`."""
        vectors_NO = np.empty((len(dense_NF), self.num_out), np.float32)
        encode = encode_samples_holding_gil if len(dense_NF) <= FEW_SAMPLES else encode_samples
        encode(
            np.ascontiguousarray(rows_KD),
            self.num_categorical,
            offsets_LN1,
            self.pooling_L,
            dense_NF,
            self.mean_F,
            self.scale_F,
            np.float32(MAX_DEVIATIONS),
            self.sizes_S,
            self.weights_W,
            vectors_NO,
        )
        return vectors_NO
