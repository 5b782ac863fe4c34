"""Raw records to columns: ids, numbers, labels and times in arrays; what cannot be learned becomes a dead letter."""

# N records
import numpy as np
from springtide_client.errors import EncodeError
from springtide_client.features import Texts
from springtide_client.schema import Schema

from stream.columns import Columns, DeadLetter, Partition
from stream.decode_reference import ReferenceDecoder
from stream.decode_rows import Rows
from stream.records import RawRecords
from stream.scanner.scanner import Scanner
from stream.scanner.told import Told

MAX_DETAIL = 300


class Decoder:
    """Decodes the records of one schema. Keeps which texts it has told; one thread at a time."""

    def __init__(
        self,
        schema: Schema,
        *,
        max_message_bytes: int = 1 << 20,
        max_future_seconds: float = 60,
        told: Told | None = None,
    ) -> None:
        self.schema = schema
        self.told = told or Told()
        self.scanner = Scanner(
            schema, max_message_bytes=max_message_bytes, max_future_seconds=max_future_seconds, told=self.told
        )
        self.reference = ReferenceDecoder(
            schema, max_message_bytes=max_message_bytes, max_future_seconds=max_future_seconds
        )

    def decode(self, raw: RawRecords, now_ms: int) -> Columns:
        """The records as columns, dead letters beside them; never raises for what a record holds."""
        rows = Rows(self.schema, len(raw))
        deviates_N, found = self.scanner.scan(raw, rows, now_ms)
        alive_N = np.ones(len(raw), np.bool_)
        dead: list[DeadLetter] = []
        texts: list[tuple[int, int, str]] = []
        for n in np.flatnonzero(deviates_N).tolist():
            try:
                sample, encoded = self.reference.decode(raw.value(n), int(raw.record_ms_N[n]), now_ms)
            except EncodeError as error:
                alive_N[n] = False
                dead.append(dead_letter(raw, n, error))
            else:
                rows.write(n, sample, encoded)
                texts += encoded.texts
        return rows.columns(raw, alive_N, dead, join(found, self.tell(texts)) if texts else found)

    def tell(self, texts: list[tuple[int, int, str]]) -> Texts:
        """Those texts that have not been told before."""
        features = np.array([feature for feature, _, _ in texts], np.uint16)
        ids = np.array([id_ for _, id_, _ in texts], np.int64)
        fresh = self.told.fresh(features, ids)
        return Texts(features[fresh], ids[fresh], [texts[t][2] for t in np.flatnonzero(fresh)])


def join(one: Texts, other: Texts) -> Texts:
    """Both."""
    return Texts(
        np.concatenate([one.features, other.features]), np.concatenate([one.ids, other.ids]), one.texts + other.texts
    )


def compile_scanner() -> None:
    """Compiles the scanner into Numba's cache, so that a first start is quick."""
    schema = Schema(labels=("label",), categorical=("id",), sequence=("ids",))
    raw = RawRecords.from_messages(Partition("", 0), [b'{"label": 1, "id": "text", "ids": [1]}', b"{"])
    Decoder(schema).decode(raw, 0)


def dead_letter(raw: RawRecords, n: int, error: EncodeError) -> DeadLetter:
    """Record n with the reason why it cannot be learned."""
    return DeadLetter(
        partition=raw.partition,
        offset=int(raw.offset_N[n]),
        reason=error.reason,
        detail=str(error)[:MAX_DETAIL],
        key=raw.key(n),
        value=raw.value(n),
        record_ms=int(raw.record_ms_N[n]),
    )
