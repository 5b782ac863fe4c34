"""The products of a sample's vectors and their gradients: kernels and launcher together, within rounding of numpy's."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.kernels.cuda.launchers.dot_interaction import (
    MATRIX_BYTES,
    MOST_ROWS,
    MOST_VECTORS,
    ROW_BYTES,
    DotInteraction,
    gradient_group,
    num_pairs_of,
    product_group,
)
from springtide.kernels.cuda.sources import options_of, source_of
from tests.kernels.cuda.test_sources import CUPYS_OWN, IN_HASTE
from tests.kernels.oracle import nearest
from tests.support.gpu_emulation.emulated_ops import DEVICES, device_of, host
from tests.support.gpu_emulation.nvrtc import compiled

THREADS = 256  # as on the GPU: the largest sample has 136 tiles
# vectors, dimension, samples: pairs of one, no whole tiles, no whole chunks, the largest, more samples than a block's
SHAPES = [(2, 8, 1), (3, 5, 7), (27, 16, 19), (5, 1, 131), (33, 40, 3), (64, 128, 3), (63, 24, 1), (8, 64, 71)]
KINDS = {"float32": 2.0**-24, "bfloat16": 2.0**-24, "float64": 2.0**-53}


def pairs_on(name: str) -> DotInteraction:
    device = device_of(name, seed=1)
    device.threads = THREADS
    return DotInteraction(device)


def drawn(shape: tuple[int, ...], kind: str) -> tuple[Any, Any]:
    """Numbers as the launcher takes them, and as float64."""
    numbers = np.random.default_rng(sum(shape)).standard_normal(shape)
    if kind == "bfloat16":
        halves = nearest(numbers.astype(np.float32))
        return (halves.view(np.uint32) >> 16).astype(np.uint16).view(np.int16), halves.astype(np.float64)
    taken = numbers.astype(kind)
    return taken, taken.astype(np.float64)


def as_float64(array: Any, kind: str) -> Any:
    array = host(array)
    if kind == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def check(ours: Any, exact: Any, sizes: Any, num_terms: int, kind: str) -> None:
    """Within what rounding of so many terms, whose sizes sum to these, can make; a bfloat16 is rounded once more."""
    bound = (num_terms + 1) * KINDS[kind] * sizes + (2.0**-8 * abs(exact) if kind == "bfloat16" else 0)
    assert ours.shape == exact.shape
    assert (abs(ours - exact) <= bound * (1 + 1e-6) + 1e-300).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_products_and_gradients_are_within_rounding_of_the_exact_ones(device: str, kind: str) -> None:
    pairs = pairs_on(device)
    for num_vectors, dim, num in SHAPES:
        i, j = np.triu_indices(num_vectors, 1)
        taken, exact = drawn((num, num_vectors, dim), kind)
        products, sizes = (x @ x.transpose(0, 2, 1) for x in (exact, abs(exact)))
        check(as_float64(pairs.products(taken), kind), products[:, i, j], sizes[:, i, j], dim, kind)

        taken_grads, grads = drawn((num, len(i)), kind)
        symmetric = np.zeros((num, num_vectors, num_vectors))
        symmetric[:, i, j] = symmetric[:, j, i] = grads
        ours = as_float64(pairs.gradients(taken, taken_grads), kind)
        check(ours, symmetric @ exact, abs(symmetric) @ abs(exact), num_vectors, kind)


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_sample_gives_does_not_depend_on_its_batch(device: str) -> None:
    pairs, (vectors, _), (grads, _) = pairs_on(device), drawn((23, 9, 12), "float32"), drawn((23, 36), "float32")
    alone = [
        (pairs.products(vectors[n : n + 1]), pairs.gradients(vectors[n : n + 1], grads[n : n + 1])) for n in (0, 22)
    ]
    for n, (products, gradients) in zip((0, 22), alone, strict=True):
        np.testing.assert_array_equal(host(products)[0], host(pairs.products(vectors))[n])
        np.testing.assert_array_equal(host(gradients)[0], host(pairs.gradients(vectors, grads))[n])


@pytest.mark.parametrize("device", DEVICES)
def test_a_number_that_is_not_finite_stays_in_its_sample(device: str) -> None:
    pairs = pairs_on(device)
    vectors, _ = drawn((7, 5, 6), "float32")
    vectors[3, 2, 1] = np.nan
    products = host(pairs.products(vectors))
    assert np.isnan(products).any(axis=1).tolist() == [n == 3 for n in range(7)]
    assert np.isnan(products[3]).sum() == 4  # the pairs of that vector alone
    gradients = host(pairs.gradients(vectors, np.ones((7, 10), np.float32)))
    assert np.isnan(gradients).any(axis=(1, 2)).tolist() == [n == 3 for n in range(7)]


@pytest.mark.parametrize("device", DEVICES)
def test_no_samples_are_no_products(device: str) -> None:
    pairs = pairs_on(device)
    vectors = np.zeros((0, 4, 8), np.float32)
    assert host(pairs.products(vectors)).shape == (0, 6)
    assert host(pairs.gradients(vectors, np.zeros((0, 6), np.float32))).shape == (0, 4, 8)


@given(st.integers(2, MOST_VECTORS), st.integers(1, 2048), st.sampled_from([4, 8]))
def test_a_block_has_room_and_threads_for_the_samples_it_takes_at_once(num_vectors: int, dim: int, size: int) -> None:
    quads = -(-num_vectors // 4)
    group = product_group(num_vectors, THREADS)
    assert group >= 1
    assert group * quads * (quads + 1) // 2 <= THREADS
    assert group * quads * 4 <= MOST_ROWS
    assert group * num_pairs_of(num_vectors) * size <= (MOST_ROWS + 4) * 64  # where the products are put in order

    group, width = gradient_group(num_vectors, dim, THREADS, size)
    assert group >= 1
    assert THREADS % width == width & (width - 1) == 0
    assert group * quads * width // 4 <= THREADS
    assert group * num_vectors * quads * 4 * size <= MATRIX_BYTES
    assert group * num_vectors * width * size <= ROW_BYTES


def test_what_is_no_batch_of_vectors_is_refused() -> None:
    pairs = pairs_on("host")
    for shape, dtype, says in [
        ((3, 1, 4), np.float32, "2 to 64"),
        ((3, 65, 4), np.float32, "2 to 64"),
        ((3, 4), np.float32, "vectors float32"),
        ((3, 4, 4), np.float16, "bits of an int16"),
    ]:
        with pytest.raises(ValueError, match=says):
            pairs.products(np.zeros(shape, dtype))
    with pytest.raises(ValueError, match="grads"):
        pairs.gradients(np.zeros((3, 4, 4), np.float32), np.zeros((3, 5), np.float32))


@pytest.mark.parametrize(("architecture", "number"), list(itertools.product([80, 90, 100], [1, 2])))
def test_the_other_dtypes_compile_too(architecture: int, number: int) -> None:
    options = (*options_of((("NUMBER", number),)), *CUPYS_OWN, IN_HASTE, f"--gpu-architecture=sm_{architecture}")
    messages, num_bytes = compiled(source_of("dot_interaction"), options)
    assert not messages.strip("\0\n ")
    assert num_bytes > 1000
