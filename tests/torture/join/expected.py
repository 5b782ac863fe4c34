"""What a trainer of a traffic must have learned: the samples by definition, and the model that has learned these."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from springtide.app.config.load import Config, load_config
from springtide.app.training.bootstrap import load_state
from springtide.app.version_log.write.writer import LogWriter
from springtide.stream.batcher import Batcher
from springtide.stream.columns import Columns, RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.join_state import FIRST, FIRST_PLACE, OTHER_WINDOW, JoinedRows, JoinState, SamplePlaces
from springtide.stream.positions import Partition
from tests.stream.join.batch_join import batch_join
from tests.torture.join.recorder import Floor
from tests.torture.join.traffic import (
    ACTIONS,
    DEDUPE_MS,
    EARLY_MS,
    IMPRESSIONS,
    LABELS,
    LATENESS_MS,
    NUM_PARTITIONS,
    Traffic,
)
from tests.torture.verify.log_contents import LogContents, read_log_contents

WINDOWS = sorted({label.window_ms for label in LABELS.values()})
OFFSETS = 1 << 40  # more than a partition has
Samples = dict[str, np.ndarray[Any, Any]]


def cursor_of(name: str) -> str:
    """A cursor's name as `batch_join` has it."""
    return name.replace(IMPRESSIONS, "imp")


@dataclass(frozen=True)
class Expected:
    """By definition: `samples` as a recorder has them, without ids; dead letters by reason; impressions sent twice."""

    samples: Samples
    dead_letters: Counter[str]
    num_duplicates: int
    num_late_by_floor: int  # records that are late because their partition was idle before

    @staticmethod
    def of(traffic: Traffic, floors: Mapping[Floor, int]) -> "Expected":
        """`floors`: as decided at run time, for a silence is one of wall time."""
        logs = traffic.logs()
        settings = {"lateness_ms": LATENESS_MS, "early_ms": EARLY_MS, "dedupe_ms": DEDUPE_MS}
        given = {
            (cursor_of(cursor), ("imp" if p.topic == IMPRESSIONS else p.topic, p.number), offset): ms
            for (cursor, p, offset), ms in floors.items()
        }
        rows, refused = batch_join(logs, LABELS, **settings, floors=given)
        last_ms = traffic.end_ms - LATENESS_MS
        rows = [row for row in rows if row[0] < last_ms]
        labels_NL = np.full((len(rows), len(LABELS)), np.nan, np.float32)
        window_N = np.array([row[5] for row in rows])
        for window_ms in WINDOWS:
            columns = [n for n, label in enumerate(LABELS.values()) if label.window_ms == window_ms]
            labels_NL[np.ix_(window_N == window_ms, columns)] = [row[7] for row in rows if row[5] == window_ms]
        names = ("due_ms", "key_hash", "shown_ms", "partition", "offset", "window_ms")
        types = (np.int64, np.uint64, *[np.int64] * 4)
        samples: Samples = {
            name: np.array([row[n] for row in rows], type_)
            for n, (name, type_) in enumerate(zip(names, types, strict=True))
        }
        # every cursor refuses what is late; of several cursors of the impressions one reports what has no key
        letters = Counter(
            reason
            for reason in ("no_key", "late")
            for cursor, _, _ in refused[reason]
            if reason == "late" or cursor in (f"imp+{WINDOWS[0]}", ACTIONS)
        )
        without_floors = sum(
            record.ms < newest - LATENESS_MS and record.key is not None
            for place, log in logs.items()
            for _ in (WINDOWS if place[0] == "imp" else (0,))
            for newest, record in zip(
                np.maximum.accumulate([0, *(record.ms for record in log)]).tolist(), log, strict=False
            )
        )
        num_duplicates = sum(
            int(cursor.partition("+")[2]) + shown_ms < last_ms for cursor, shown_ms, _, _ in refused["duplicate"]
        )
        return Expected(samples | {"labels": labels_NL}, letters, num_duplicates, letters["late"] - without_floors)


class ImpressionColumns:
    """The decoded impressions of a traffic, to be had by partition and offset."""

    def __init__(self, traffic: Traffic, config: Config) -> None:
        assert config.join is not None
        decoder = Decoder(config.schema, config.source, key=config.join.config.key)
        pieces = []
        self._first_row, num_rows = [], 0
        for number in range(NUM_PARTITIONS[IMPRESSIONS]):
            count = len(traffic.rows[IMPRESSIONS, number])
            values = list(traffic.messages((IMPRESSIONS, number), 0, count))
            raw = RawRecords.from_messages(Partition(IMPRESSIONS, number), values, offsets=list(range(count)))
            pieces.append(decoder.decode(raw, traffic.end_ms))
            assert len(pieces[-1]) == count
            self._first_row.append(num_rows)
            num_rows += count
        self.id_strings = [piece.id_strings for piece in pieces]
        self._all = Columns.concatenate(pieces)

    def take(self, samples: Samples) -> Columns:
        """The columns of samples, in their order, with their labels."""
        rows = np.array(self._first_row)[samples["partition"]] + samples["offset"]
        columns = self._all.take(rows)
        assert np.array_equal(columns.event_ms_N, samples["shown_ms"])
        place_columns = [samples[name] for name in list(samples)[:6]]
        places = SamplePlaces(*place_columns, np.zeros(len(rows), np.int64))  # first ones
        state = JoinState(FIRST_PLACE, {})
        none_N = np.zeros(len(rows), np.int64)
        is_again_N = samples["window_ms"] != WINDOWS[0]
        grade_N = np.where(is_again_N, OTHER_WINDOW, FIRST).astype(np.uint8)  # ids count once
        joined = JoinedRows(places, none_N, {}, state, state)
        return replace(columns, labels_NL=samples["labels"], grade_N=grade_N, joined=joined)


def learn_ready_made(folder: Path, config_path: Path, columns: Columns) -> LogContents:
    """Learn samples that need no join by the trainer's own state, in full batches; return what its log holds then."""
    config = load_config(config_path)
    assert config.log.path.is_relative_to(folder)
    torch.manual_seed(config.train.seed)
    with LogWriter.open(config.log, schema=config.schema) as log:
        state = load_state(config, log)
        batcher = Batcher(config.train.batch_size, float("inf"), min_batch_size=config.train.min_batch_size)
        batcher.add(columns)
        while (batch := batcher.take() or batcher.flush()) is not None:
            if state.learner.count_keys(batch).need_checkpoint:
                log.append(*state.checkpoint(created_ms=1, complete_until_ms=1))
            state.learn(batch)
        log.append(*state.checkpoint(created_ms=1, complete_until_ms=1))
        log.sync()
        state.learner.table.close()
    return read_log_contents(config.log.path, window_samples=config.train.window_samples)
