"""What travels with the keys to their owners."""

import torch

from springtide.embeddings.sharding.route import pack_columns, unpack_columns


def test_columns_of_any_number_of_keys_come_back_from_their_bytes():
    for num_keys in (0, 1, 2):  # the slices of one row are contiguous where they are, at any byte
        features, ids = torch.arange(num_keys, dtype=torch.int16), torch.arange(num_keys) - 2**40
        message = pack_columns([features, ids], torch.arange(num_keys).flip(0))
        assert message.shape == (num_keys, 10)
        found = unpack_columns(message, [torch.int16, torch.int64])
        assert [column.flip(0).tolist() for column in found] == [features.tolist(), ids.tolist()]
