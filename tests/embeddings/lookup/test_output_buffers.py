import gc

import torch

from embeddings.lookup.output_buffers import OutputBuffers


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    buffers = OutputBuffers()
    first = buffers.take(1000, 16)
    address = first.ctypes.data
    del first
    assert buffers.take(1000, 16).ctypes.data == address
    assert buffers.take(900, 16).ctypes.data == address


def test_memory_that_is_held_is_never_handed_out_again() -> None:
    buffers = OutputBuffers()
    tensors = [torch.from_numpy(buffers.take(100, 4)).view(-1)[10:].reshape(-1, 2) for _ in range(9)]
    for n, tensor in enumerate(tensors):
        tensor.fill_(n)
    gc.collect()
    assert [tensor.unique().tolist() for tensor in tensors] == [[n] for n in range(9)]
    views = [buffers.take(100, 4) for _ in range(9)]
    for n, view in enumerate(views):
        view[:] = 100 + n
    assert [tensor.unique().tolist() for tensor in tensors] == [[n] for n in range(9)]


def test_few_buffers_are_kept() -> None:
    buffers = OutputBuffers()
    for size in range(1, 4000, 7):
        assert buffers.take(size, 4).shape == (size, 4)
    assert buffers.num_bytes() <= 4 * 4 * 4 * 4500
    assert buffers.take(0, 4).shape == (0, 4)
