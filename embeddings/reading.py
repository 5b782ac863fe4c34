"""Reading without creating: rows and what is known of ids that have none."""

# K keys, U unique keys, D dimension
import numpy as np
import numpy.typing as npt

from embeddings.admission import AdmissionControl
from embeddings.below import Below
from embeddings.horizons import Horizons
from embeddings.memory import Memory
from embeddings.rows import Float32Array
from kernels.spec import NO_SLOT, Unique, Verbs

UInt8Array = npt.NDArray[np.uint8]
KNOWN, UNKNOWN, NOT_ADMITTED, FORGOTTEN = 0, 1, 2, 3


def read_rows(
    verbs: Verbs, memory: Memory, below: Below, admission: AdmissionControl, horizons: Horizons, unique: Unique
) -> tuple[Float32Array, UInt8Array]:
    """The rows of a batch's keys, (K, D), NaN where there is none, and their status (K); moves nothing."""
    features_U, ids_U, mixed_U = unique.features_U, unique.ids_U, unique.mixed_U
    slots_U = verbs.find(memory.store, features_U, ids_U, mixed_U)
    dead = memory.dead(slots_U, features_U, horizons)
    missing = np.flatnonzero(slots_U == NO_SLOT)
    if len(missing) == len(dead) == 0:
        rows_KD: Float32Array = verbs.gather(memory.store, slots_U, unique.inverse_K)
        return rows_KD, np.zeros(len(unique.inverse_K), np.uint8)
    values_UD = verbs.gather(memory.store, slots_U, np.arange(len(slots_U)))
    status_U = np.full(len(slots_U), KNOWN, np.uint8)
    values_UD[dead], status_U[dead] = np.nan, FORGOTTEN
    recalled = below.recall(features_U[missing], ids_U[missing]).alive(horizons)
    found_N = recalled.found_U
    values_UD[missing[found_N]] = recalled.rows.values[found_N]
    status_U[missing] = np.where(found_N, KNOWN, np.where(recalled.forgotten_U, FORGOTTEN, UNKNOWN))
    rowless = np.flatnonzero(status_U == UNKNOWN)
    status_U[rowless[admission.was_seen(features_U[rowless], mixed_U[rowless])]] = NOT_ADMITTED
    return values_UD[unique.inverse_K], status_U[unique.inverse_K]
