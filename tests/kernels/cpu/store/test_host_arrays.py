"""None"""

import gc

import torch

from springtide.kernels.cpu.store.host_arrays import ReusedBuffers


def test_memory_is_used_again_once_nothing_refers_to_it() -> None:
    buffers = ReusedBuffers()
    first = buffers.take(1000, 16)
    address = first.ctypes.data
    del first
    assert buffers.take(1000, 16).ctypes.data == address
    assert buffers.take(900, 16).ctypes.data == address


def test_memory_in_use_is_never_handed_out_again() -> None:
    buffers = ReusedBuffers()
    tensors = [torch.from_numpy(buffers.take(100, 4)).view(-1)[10:].reshape(-1, 2) for _ in range(9)]
    for n, tensor in enumerate(tensors):
        tensor.fill_(n)
    gc.collect()
    assert [tensor.unique().tolist() for tensor in tensors] == [[n] for n in range(9)]
    views = [buffers.take(100, 4) for _ in range(9)]
    for n, view in enumerate(views):
        view[:] = 100 + n
    assert [tensor.unique().tolist() for tensor in tensors] == [[n] for n in range(9)]


def test_a_view_of_a_view_keeps_its_memory() -> None:
    buffers = ReusedBuffers()
    view = buffers.take(100, 4).reshape(-1)[8:].view("u4")[::2].T
    view[:] = 7
    buffers.take(100, 4)[:] = 0
    assert (view == 7).all()


def test_few_buffers_are_kept() -> None:
    buffers = ReusedBuffers()
    for size in range(1, 4000, 7):
        assert buffers.take(size, 4).shape == (size, 4)
    assert buffers.num_bytes() <= 4 * 4 * 4 * 4500
    assert buffers.take(0, 4).shape == (0, 4)
