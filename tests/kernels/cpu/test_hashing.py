"""The kernels' hashes and first values are the client's, bit by bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.kernels.backend import backend
from springtide_client.keys import INT64_MAX, INT64_MIN, hash_keys, hash_string
from springtide_client.rows.initial_values import initial_values
from tests.support.gpu_emulation.emulated_ops import gpu_or_why_not

KEYS = st.lists(st.tuples(st.integers(0, 65535), st.integers(INT64_MIN, INT64_MAX)), max_size=30)


def arrays(keys: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([f for f, _ in keys], np.uint16), np.array([i for _, i in keys], np.int64)


@settings(deadline=None)
@given(KEYS)
def test_key_hashes_equal_the_clients(keys: list[tuple[int, int]]) -> None:
    features, ids = arrays(keys)
    np.testing.assert_array_equal(backend().hash_keys(features, ids), hash_keys(features, ids))


@settings(deadline=None)
@given(
    KEYS, st.integers(1, 40), st.integers(-(2**70), 2**70), st.sampled_from([0.01, 0.1, 1 / 3, 0.0, 1e-30, 12345.678])
)
def test_first_values_equal_the_clients_bit_by_bit(
    keys: list[tuple[int, int]], dim: int, seed: int, scale: float
) -> None:
    features, ids = arrays(keys)
    ours = backend().initial_values(features, ids, dim, seed, scale)
    theirs = initial_values(features, ids, dim=dim, seed=seed, scale=scale)
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=10))
def test_texts_hash_as_the_clients_do(texts: list[bytes]) -> None:
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    joined = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
    assert backend().hash_texts(joined, offsets).tolist() == [hash_string(text) for text in texts]


def test_a_device_without_kernels_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="tpu"):
        backend("tpu")


def test_a_missing_gpu_is_reported() -> None:
    if gpu_or_why_not():
        with pytest.raises(ValueError, match=r"'cuda' needs .* use the device 'cpu'"):
            backend("cuda")
