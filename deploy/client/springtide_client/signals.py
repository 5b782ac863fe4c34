"""Proof that a sample was served as it is trained: a hash of what it read of memory.

An answer carries it, the record brings it back, and the trainer computes it again for the record's time.
"""

# N samples, M values of a list, P features that memory fills in
import numpy as np

from springtide_client.array_types import Float32Array, Int64Array, UInt64Array
from springtide_client.features import Features, Ragged
from springtide_client.keys import GOLDEN_64, hash_string, mix64_array
from springtide_client.schema import Schema

PIECE_BITS = 32  # of a hash, the low ones: which tell features apart
NAN_BITS = np.uint32(0x7FC0_0000)


def recalled_features(schema: Schema) -> tuple[str, ...]:
    """Return the features that are filled in from memory, in the order in which a hash has them."""
    names: list[str] = []
    for memory in schema.memories:
        names += memory.features if memory.is_sequence else memory.keep
    for counter in schema.counters:
        names += counter.features
    return tuple(names)


def hash_signals(schema: Schema, features: Features) -> Int64Array:
    """Return the hash of what each sample read of memory, int64 (N); `features` are those of the whole schema.

    The high 32 bits are of all features that memory fills in. The low 32 bits are as many pieces as there are such
    features, so that `first_difference` can name one.
    """
    high_N, low_N = np.zeros(len(features), np.uint64), np.zeros(len(features), np.uint64)
    names = recalled_features(schema)
    for place, name in enumerate(names):
        own_N = _hash_feature(schema, features, name)
        high_N = mix64_array(high_N ^ own_N)
        low_N |= (own_N & _piece_mask(len(names))) << _piece_shift(place, len(names))
    return ((high_N >> np.uint64(PIECE_BITS) << np.uint64(PIECE_BITS)) | low_N).view(np.int64)


def first_difference(schema: Schema, served: int, trained: int) -> str | None:
    """Return the first feature in which two unequal hashes differ, None where the pieces of all are equal.

    Of more than 32 features the pieces are of the first 32.
    """
    names, difference = recalled_features(schema), (served ^ trained) & ((1 << PIECE_BITS) - 1)
    for place, name in enumerate(names[:PIECE_BITS]):
        if difference >> int(_piece_shift(place, len(names))) & int(_piece_mask(len(names))):
            return name
    return None


def _piece_mask(num_features: int) -> np.uint64:
    return np.uint64((1 << max(1, PIECE_BITS // num_features)) - 1)


def _piece_shift(place: int, num_features: int) -> np.uint64:
    # a piece that has no place left is shifted out of the hash
    bits = max(1, PIECE_BITS // num_features) * place
    return np.uint64(bits if bits < PIECE_BITS else 64)


def _hash_feature(schema: Schema, features: Features, name: str) -> UInt64Array:
    salt = np.uint64(hash_string(name.encode()) & 0xFFFF_FFFF_FFFF_FFFF)
    if name in schema.categorical:
        return mix64_array(features.categorical_NC[:, schema.categorical.index(name)].astype(np.uint64) ^ salt)
    if name in schema.dense:
        return mix64_array(_bits(features.dense_NF[:, schema.dense.index(name)]) ^ salt)
    return _hash_lists(features.lists[schema.lists.index(name)], salt)


def _bits(numbers_N: Float32Array) -> UInt64Array:
    bits_N = np.ascontiguousarray(numbers_N, np.float32).view(np.uint32)
    return np.where(np.isnan(numbers_N), NAN_BITS, bits_N).astype(np.uint64)


def _hash_lists(ragged: Ragged, salt: np.uint64) -> UInt64Array:
    """Return the hash of each list, which depends on the order of its ids."""
    lengths_N = np.diff(ragged.offsets)
    places_M = np.arange(len(ragged.ids_M)) - np.repeat(ragged.offsets[:-1], lengths_N) + 1
    mixed_M = mix64_array(ragged.ids_M.astype(np.uint64) ^ (places_M.astype(np.uint64) * GOLDEN_64))
    sums_M = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed_M, dtype=np.uint64)])
    sums_N = sums_M[ragged.offsets[1:]] - sums_M[ragged.offsets[:-1]]
    return mix64_array(sums_N ^ salt ^ lengths_N.astype(np.uint64))
