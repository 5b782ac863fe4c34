"""Columns of made-up records of two partitions, for tests of what moves columns."""

# N rows
import itertools

import numpy as np
from hypothesis import strategies as st

from springtide.stream.columns import Columns, DeadLetter
from springtide.stream.positions import Partition
from springtide_client.features import Features, IdStrings, Ragged

A, B = Partition("clicks", 0), Partition("clicks", 1)
RECORDS_OF_ROWS = st.lists(st.sampled_from("rdg012345679"), max_size=30)
KINDS = st.lists(st.sampled_from("rrrdg"), max_size=40)  # a row, a dead letter, a gap (compacted, control)


def columns_of(partition, kinds, begin, *, event_ms=None, topic_id="x"):
    """Columns of records at the offsets begin, begin + 1, ...; the rows' values are their offsets.

    A kind that is a digit is a record of so many rows.
    """
    rows = [begin + i for i, kind in enumerate(kinds) for _ in range(num_rows_of(kind))]
    dead = [begin + i for i, kind in enumerate(kinds) if kind == "d"]
    offset_N = np.array(rows, np.int64)
    lengths = offset_N % 3
    return Columns(
        features=Features(
            offset_N[:, None] * 2 + partition.number,
            (Ragged(np.repeat(offset_N, lengths), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)),),
            offset_N[:, None].astype(np.float32),
        ),
        labels_NL=np.zeros((len(rows), 1), np.float32),
        weights_N=np.ones(len(rows), np.float32),
        event_ms_N=offset_N + 1000 if event_ms is None else np.array([event_ms(o) for o in rows], np.int64),
        record_ms_N=offset_N,
        partition_N=np.zeros(len(rows), np.int32),
        offset_N=offset_N,
        partitions=(partition,),
        dead_letters=tuple(DeadLetter(partition, offset, "empty", "", None, None, 0) for offset in dead),
        end_offsets={partition: begin + len(kinds)},
        id_strings=IdStrings(np.zeros(len(rows), np.uint16), offset_N, [f"{partition.number}-{o}" for o in rows]),
        topic_ids={partition: topic_id},
    )


def num_rows_of(kind: str) -> int:
    """The rows of a record of this kind."""
    return int(kind) if kind.isdigit() else int(kind == "r")


def cut_into_columns(partition, kinds, cuts):
    """The same records, polled in pieces."""
    bounds = sorted({0, len(kinds), *(cut % (len(kinds) + 1) for cut in cuts)})
    return [columns_of(partition, kinds[a:b], a) for a, b in itertools.pairwise(bounds)]
