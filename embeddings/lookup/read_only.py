"""Reads rows without creating any, and the status of ids that have none."""

# K keys, U unique keys, D dimension
import numpy as np
import numpy.typing as npt

from springtide.embeddings.memory.resident import ResidentRows
from springtide.embeddings.policy.admission import AdmissionControl
from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.tiers.lower_tiers import LowerTiers
from springtide.kernels.ops import Ops
from springtide.kernels.types import NO_SLOT, Array, UniqueKeys

UInt8Array = npt.NDArray[np.uint8]
KNOWN, UNKNOWN, NOT_ADMITTED, FORGOTTEN = 0, 1, 2, 3


def find_rows(
    ops: Ops,
    memory: ResidentRows,
    lower_tiers: LowerTiers,
    admission: AdmissionControl,
    cutoffs: ExpiryCutoffs,
    unique: UniqueKeys,
) -> tuple[Array, Array]:
    """The rows of a batch's keys, (K, D), NaN for keys without one, and their status (K), both on the device.

    Changes nothing in any tier. SpillError.
    """
    xp = ops.xp
    features_U, ids_U, mixed_U = unique.features_U, unique.ids_U, unique.mixed_U
    slots_U = ops.find(memory.store, features_U, ids_U, mixed_U)
    expired = memory.expired_positions(slots_U, features_U, cutoffs)
    if len(expired):
        expired = ops.unpadded(expired)
    missing = xp.flatnonzero(slots_U == NO_SLOT)
    if len(missing) == len(expired) == 0:
        return ops.gather(memory.store, slots_U, unique.inverse_K), xp.zeros(len(unique.inverse_K), np.uint8)
    values_UD = ops.gather(memory.store, slots_U, xp.arange(len(slots_U)))
    status_U = xp.full(len(slots_U), KNOWN, np.uint8)
    values_UD[expired], status_U[expired] = np.nan, FORGOTTEN
    features_N, ids_N, mixed_N = ops.fetch(features_U[missing], ids_U[missing], mixed_U[missing])
    recalled = lower_tiers.recall(features_N, ids_N).without_expired(cutoffs)
    found_N = recalled.found_U
    status_N = np.where(found_N, KNOWN, np.where(recalled.forgotten_U, FORGOTTEN, UNKNOWN)).astype(np.uint8)
    rowless = np.flatnonzero(status_N == UNKNOWN)
    status_N[rowless[admission.was_seen(features_N[rowless], mixed_N[rowless])]] = NOT_ADMITTED
    found, rows, status = ops.put(np.flatnonzero(found_N), recalled.rows.values[found_N], status_N)
    values_UD[missing[found]], status_U[missing] = rows, status
    return values_UD[unique.inverse_K], status_U[unique.inverse_K]
