"""What travels with the keys to their owners."""

import torch

from embeddings.sharding.route import _columns_of
from embeddings.sharding.row_format import bytes_of


def test_columns_of_any_number_of_keys_come_back_from_their_bytes():
    for num_keys in (0, 1, 2):  # the slices of one row are contiguous where they are, at any byte
        features, ids = torch.arange(num_keys, dtype=torch.int16), torch.arange(num_keys) - 2**40
        message = torch.cat([bytes_of(column.reshape(-1, 1)) for column in (features, ids)], dim=1)
        found = _columns_of(message, [torch.int16, torch.int64])
        assert [column.tolist() for column in found] == [features.tolist(), ids.tolist()]
