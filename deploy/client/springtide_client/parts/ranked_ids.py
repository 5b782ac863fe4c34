"""The best ids of one part with their scores, and the best of all parts."""

# M ids
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from springtide_client.array_types import Float32Array, Int64Array


class RankedIds(NamedTuple):
    """Ids with their scores, the best first; ties by id. `texts_M`: the string where an id is the hash of one."""

    ids_M: Int64Array
    scores_M: Float32Array
    texts_M: Sequence[str | None]

    def encode(self) -> bytes:
        """Return them as the body of a response: MessagePack, with little-endian columns."""
        columns = self.ids_M.astype("<i8", copy=False).tobytes(), self.scores_M.astype("<f4", copy=False).tobytes()
        texts = list(self.texts_M) if any(text is not None for text in self.texts_M) else None
        return msgspec.msgpack.encode((*columns, texts))

    @staticmethod
    def decode(body: bytes) -> "RankedIds":
        """Return what a part has answered; ValueError for another body."""
        ids, scores, texts = msgspec.msgpack.decode(body, type=tuple[bytes, bytes, list[str | None] | None])
        ids_M, scores_M = np.frombuffer(ids, "<i8"), np.frombuffer(scores, "<f4")
        texts_M = [None] * len(ids_M) if texts is None else texts
        if not len(ids_M) == len(scores_M) == len(texts_M):
            raise ValueError(f"{len(ids_M)} ids with {len(scores_M)} scores and {len(texts_M)} texts")
        return RankedIds(ids_M, scores_M, texts_M)

    @staticmethod
    def best(of_parts: Sequence["RankedIds"], k: int) -> "RankedIds":
        """Return the k best of all parts."""
        ids = np.concatenate([np.zeros(0, np.int64), *(part.ids_M for part in of_parts)])
        scores = np.concatenate([np.zeros(0, np.float32), *(part.scores_M for part in of_parts)])
        texts = [text for part in of_parts for text in part.texts_M]
        order = np.lexsort((ids, -scores))[:k]
        return RankedIds(ids[order], scores[order], [texts[place] for place in order.tolist()])

    def documents(self, *, sign: float = 1.0) -> list[dict[str, Any]]:
        """Return them as `{"id", "score"}`, the score times `sign`."""
        ids = [row_id if text is None else text for row_id, text in zip(self.ids_M.tolist(), self.texts_M, strict=True)]
        scores = self.scores_M if sign == 1 else np.float32(sign) * self.scores_M
        return [{"id": name, "score": score} for name, score in zip(ids, scores.tolist(), strict=True)]
