"""Columns arrive unchanged, in one copy per batch, whenever the copy happens."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from springtide.app.training.device.pinned_buffers import (
    ALIGNMENT,
    MIN_BUFFER_BYTES,
    PinnedBuffers,
    column_layout,
    read_columns,
    write_columns,
)
from tests.support.gpu_emulation.transfer_stream import EmulatedTransferStream

DTYPES = st.sampled_from([np.float32, np.int64, np.uint16, np.uint8])
ARRAYS = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=1, max_dims=3, min_side=0)))


@given(st.dictionaries(st.text(max_size=3), ARRAYS, max_size=5))
def test_columns_do_not_overlap_in_a_buffer_and_are_read_back(columns) -> None:
    places, num_bytes = column_layout(columns)
    block = torch.full((num_bytes,), 0xAB, dtype=torch.uint8)
    write_columns(columns, places, block)
    ends = 0
    for place in places.values():
        assert place.start % ALIGNMENT == 0
        assert ends <= place.start
        ends = place.stop
    assert ends <= num_bytes
    for name, tensor in read_columns(places, block).items():
        assert tensor.numpy().tobytes() == columns[name].tobytes()
        assert tensor.numpy().dtype == columns[name].dtype
        assert tuple(tensor.shape) == columns[name].shape


def columns_of(number: int, num: int = 50) -> dict[str, np.ndarray]:
    random = np.random.default_rng(number)
    return {"ids": random.integers(0, 2**60, num), "numbers": random.standard_normal((num, 3)).astype(np.float32)}


@pytest.mark.parametrize("run_inline", [True, False])
def test_a_batch_is_read_while_the_next_one_is_copied(run_inline: bool) -> None:
    transfer = EmulatedTransferStream(run_inline=run_inline)
    buffers = PinnedBuffers(transfer)
    current = buffers.stage(columns_of(0))
    for number in range(1, 9):
        next_batch = buffers.stage(columns_of(number))
        for name, tensor in current.tensors().items():
            np.testing.assert_array_equal(tensor.numpy(), columns_of(number - 1)[name])
        current.release()
        current = next_batch
    assert transfer.num_copies == 9
    assert transfer.num_allocated == 4  # two blocks, an end each


def test_buffers_grow_with_the_batches() -> None:
    transfer = EmulatedTransferStream(run_inline=False)
    buffers = PinnedBuffers(transfer)
    for num in (1, MIN_BUFFER_BYTES, 3 * MIN_BUFFER_BYTES, 2):
        staged = buffers.stage(columns_of(num, num))
        np.testing.assert_array_equal(staged.tensors()["ids"].numpy(), columns_of(num, num)["ids"])
        staged.release()
        staged.release()
    assert transfer.num_allocated == 2 * 3  # the last one fits where the one before it was


def test_a_third_batch_without_a_release_is_an_error() -> None:
    buffers = PinnedBuffers(EmulatedTransferStream(run_inline=False))
    held = [buffers.stage(columns_of(number)) for number in range(2)]
    with pytest.raises(RuntimeError, match="release one"):
        buffers.stage(columns_of(2))
    held[0].release()
    buffers.stage(columns_of(2))


@pytest.mark.gpu
def test_on_a_gpu_columns_are_copied_beside_the_work() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no NVIDIA GPU")
    from springtide.app.training.device.transfer_stream import CudaTransferStream

    transfer = CudaTransferStream()
    buffers = PinnedBuffers(transfer)
    current, seen = buffers.stage(columns_of(0, 5000)), []
    for number in range(1, 9):
        next_batch = buffers.stage(columns_of(number, 5000))
        torch.cuda._sleep(10_000_000)
        seen.append({name: tensor.clone() for name, tensor in current.tensors().items()})
        current.release()
        current = next_batch
    for number, tensors in enumerate(seen):
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(tensor.cpu().numpy(), columns_of(number, 5000)[name])
    arrives = transfer.fetch_async(torch.arange(5.0, device="cuda"))
    assert arrives().tolist() == [0, 1, 2, 3, 4]
