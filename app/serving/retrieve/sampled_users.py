"""Users put together from ids that have rows: what an index is tuned to before anybody has asked."""

# N users, C categorical features, R rows looked at
import numpy as np

from springtide.app.serving.model.served_view import ServedView
from springtide_client.features import Features, Ragged
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema

NUM_ROWS = 16_384  # looked at of each layer
LIST_LENGTH = 4


def sample_users(view: ServedView, part: Schema, num: int) -> Features:
    """Return users with random ids of each of their fields, the same for the same view; numbers are missing."""
    draw = np.random.default_rng(0)

    def ids_of(name: str, size: int) -> np.ndarray:
        known = _known_ids(view, part.number(name), draw)
        return draw.choice(known, size) if len(known) else np.full(size, MISSING_ID)

    columns = [ids_of(name, num) for name in part.categorical]
    offsets = LIST_LENGTH * np.arange(num + 1)
    return Features(
        np.stack(columns, axis=1) if columns else np.zeros((num, 0), np.int64),
        tuple(Ragged(ids_of(name, LIST_LENGTH * num), offsets) for name in part.lists),
        np.full((num, len(part.dense)), np.nan, np.float32),
    )


def _known_ids(view: ServedView, number: int, draw: np.random.Generator) -> np.ndarray:
    found = []
    for layer in view.layers_of(number):
        rows_R = draw.integers(0, len(layer), NUM_ROWS) if len(layer) > NUM_ROWS else np.arange(len(layer))
        found.append(layer.id[rows_R][layer.feature[rows_R] == number])
    return np.concatenate(found) if found else np.zeros(0, np.int64)
