"""Requests to the server of a part: rows of one table at exactly one version, as bytes both ways.

POST /v1/parts/rows?version=&checksum=&range=&table=&states=&wait_ms=, and feature= where all keys are of one. The body
is ids, int64 (K), and without feature= their features, uint16 (K). The response is K rows of D float32, K status
bytes, and with states=1 K rows of W float32 states and K int64 counts. All little-endian.
"""

# K keys, D dimension, W width of the states
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qs, quote

import numpy as np

from springtide_client.array_types import Float32Array, Int64Array, UInt8Array, UInt16Array
from springtide_client.format.records import Head
from springtide_client.rows.hash_range import HashRange

ROUTE = "/v1/parts/rows"
ID_BYTES, FEATURE_BYTES = 8, 2
MAX_KEYS = 65_536
MAX_WAIT_MS = 1_000


class RowRequest(NamedTuple):
    """Keys of one table that one part holds. `features_K` may hold one feature for all ids."""

    head: Head
    hash_range: HashRange
    table: str
    with_states: bool
    features_K: UInt16Array
    ids_K: Int64Array

    def encode(self, wait_ms: int) -> tuple[str, bytes]:
        """Return the path and the body; the server waits so long for a version that it does not serve yet."""
        feature = int(self.features_K[0]) if len(self.features_K) == 1 else None
        path = _path(self.head, self.hash_range, self.table, self.with_states, feature, wait_ms)
        ids = self.ids_K.astype("<i8", copy=False).tobytes()
        return path, ids if feature is not None else ids + self.features_K.astype("<u2", copy=False).tobytes()

    @staticmethod
    def decode(query: str, body: bytes) -> tuple["RowRequest", int]:
        """Return the request and the ms to wait; ValueError for what is no such request."""
        asked = _read_query(query)
        feature = asked.feature
        key_bytes = ID_BYTES + (FEATURE_BYTES if feature is None else 0)
        num_keys, rest = divmod(len(body), key_bytes)
        if rest:
            raise ValueError(f"{len(body)} bytes are not a whole number of keys of {key_bytes} bytes")
        if num_keys > MAX_KEYS:
            raise ValueError(f"{num_keys:,} keys are more than {MAX_KEYS:,}")
        if feature is None:
            features_K = np.frombuffer(body, "<u2", offset=num_keys * ID_BYTES).copy()  # kernels take writable ones
        else:
            features_K = np.array([feature], np.uint16)
        ids_K = np.frombuffer(body, "<i8", num_keys)
        return RowRequest(*asked[:4], features_K, ids_K), asked.wait_ms


class _Query(NamedTuple):
    head: Head
    hash_range: HashRange
    table: str
    with_states: bool
    feature: int | None
    wait_ms: int


# of one version there are few, and each is asked for again and again
@lru_cache(maxsize=1_024)
def _path(head: Head, hash_range: HashRange, table: str, with_states: bool, feature: int | None, wait_ms: int) -> str:
    path = (
        f"{ROUTE}?version={head.number}&checksum={head.checksum}&range={hash_range}"
        f"&table={quote(table)}&states={int(with_states)}&wait_ms={wait_ms}"
    )
    return path if feature is None else f"{path}&feature={feature}"


@lru_cache(maxsize=1_024)
def _read_query(query: str) -> _Query:
    fields = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
    try:
        found = _Query(
            head=Head(int(fields["version"]), int(fields["checksum"])),
            hash_range=HashRange.parse(fields["range"]),
            table=fields["table"],
            with_states=fields["states"] == "1",
            feature=int(fields["feature"]) if "feature" in fields else None,
            wait_ms=min(MAX_WAIT_MS, max(0, int(fields["wait_ms"]))),
        )
    except KeyError as missing:
        raise ValueError(f"the query lacks {missing}") from None
    if found.feature is not None and not 0 <= found.feature < 1 << 16:
        raise ValueError(f"{found.feature} is no feature's number")
    return found


class FoundColumns(NamedTuple):
    """Where found rows are written: at the positions of their keys."""

    rows_KD: Float32Array
    status_K: UInt8Array
    states_KW: Float32Array | None = None
    counts_K: Int64Array | None = None

    def num_bytes(self, num_keys: int) -> int:
        """The length of a response with so many of the rows."""
        found: int = num_keys * (4 * self.rows_KD.shape[1] + 1)
        if self.states_KW is not None:
            found += num_keys * (4 * self.states_KW.shape[1] + ID_BYTES)
        return found

    def fill(self, at_M: Int64Array, response: bytes) -> None:
        """Write the rows of a response, whose length is that of `num_bytes`."""
        num_keys, dim = len(at_M), self.rows_KD.shape[1]
        self.rows_KD[at_M] = np.frombuffer(response, "<f4", num_keys * dim).reshape(num_keys, dim)
        offset = 4 * num_keys * dim
        self.status_K[at_M] = np.frombuffer(response, np.uint8, num_keys, offset)
        if self.states_KW is not None and self.counts_K is not None:
            width = self.states_KW.shape[1]
            offset += num_keys
            states = np.frombuffer(response, "<f4", num_keys * width, offset)
            self.states_KW[at_M] = states.reshape(num_keys, width)
            self.counts_K[at_M] = np.frombuffer(response, "<i8", num_keys, offset + 4 * num_keys * width)
