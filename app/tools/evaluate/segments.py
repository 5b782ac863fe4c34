"""The segments of `--by FIELD`: which value of a field each sample has, and the scores of the most frequent ones."""

# N samples, S segments
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.tools.evaluate.scores import EvaluatedSamples, Score, score_of

MAX_SEGMENTS = 20
MISSING = "(missing)"


class SegmentField:
    """Reads one field of each message; it need not be a field of the schema."""

    def __init__(self, name: str) -> None:
        self.name = name
        row_type = msgspec.defstruct("Row", [("value", Any, msgspec.field(name=name, default=None))])
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(row_type)
        self._code_of: dict[str, int] = {}
        self._codes: list[npt.NDArray[np.int64]] = []

    def add(self, messages: Sequence[bytes]) -> None:
        """Note the segments of samples, whose messages are valid JSON objects."""
        code_of = self._code_of
        texts = [segment_text(self._decoder.decode(message).value) for message in messages]
        self._codes.append(np.array([code_of.setdefault(text, len(code_of)) for text in texts], np.int64))

    def scores(self, samples: EvaluatedSamples, *, label: int = 0) -> list[tuple[str, Score]]:
        """Return the scores of the most frequent segments, at most MAX_SEGMENTS, then those of all "others"."""
        codes_N = np.concatenate(self._codes)[: len(samples)] if self._codes else np.zeros(0, np.int64)
        texts = list(self._code_of)
        counts_S = np.bincount(codes_N, minlength=len(texts))
        order_S = np.lexsort((np.arange(len(texts)), -counts_S))
        shown = [code for code in order_S[:MAX_SEGMENTS].tolist() if counts_S[code]]
        found = [(texts[code], score_of(samples.where(codes_N == code), label=label)) for code in shown]
        others_N = ~np.isin(codes_N, shown)
        num_others = int(np.count_nonzero(counts_S)) - len(shown)
        if num_others:
            found.append((f"others ({num_others:,})", score_of(samples.where(others_N), label=label)))
        return found


def segment_text(value: Any) -> str:
    """Return a field's value as text; `7` and `"7"` are one segment, as they are one id."""
    if value is None:
        return MISSING
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
