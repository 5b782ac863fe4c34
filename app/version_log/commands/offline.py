"""Execute commands while no trainer runs: those that need no table, each as a version of its own in a new epoch."""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from springtide.app.errors import UserError
from springtide.app.version_log.commands.queue import Command, CommandQueue, command_entry
from springtide.app.version_log.commands.restore import build_rollback
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.replay_state import Resume
from springtide.app.version_log.read.version_range import VersionImage
from springtide.app.version_log.trainer_meta import (
    TrainerMeta,
    are_pairs,
    erasures_ahead,
    erasures_from_meta,
    erasures_to_meta,
    halves_of_pairs,
    high_water_marks,
    parse_keys,
)
from springtide.app.version_log.write.writer import LogWriter
from springtide.stream.decode.erasure_filter import Erasure
from springtide.stream.positions import positions_from_meta, positions_to_meta
from springtide_client.errors import EncodeError, LogError
from springtide_client.format.records import VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.log.directory import LogDirectory
from springtide_client.schema import Schema

logger = logging.getLogger(__name__)


def execute_pending(config: LogConfig, *, window_samples: int) -> int:
    """Execute every pending `forget` and `rollback` and make them durable; returns how many.

    They mean the features of the log: a schema that the configuration has changed begins when a trainer starts.

    Other commands stay until a trainer runs. LogBusyError if one is running.
    """
    schema = LogDirectory(config.path).newest_schema()
    if schema is None:
        raise LogError(f"the log {config.path} has no version yet")
    with LogWriter.open(config, schema=schema, wait_seconds=0.0) as log:
        resume = Resume.of(log.directory, log.start_head, log.sealed_records)
        assert resume is not None, "a log with a base has versions"
        for _ in resume.records():
            pass
        queue = CommandQueue(config.path, log.epoch, resume.executed_commands)
        executor = OfflineExecutor(log, schema, resume.meta, window_samples=window_samples)
        num_executed = 0
        for command in queue.claim():
            if (version := executor.execute(command)) is not None:
                queue.mark_executed(command.id, version)
                num_executed += 1
        log.sync()
        if log.durable is not None:
            queue.acknowledge(log.durable.number)
        return num_executed


class OfflineExecutor:
    """Appends one version per command to the end of the log."""

    def __init__(self, log: LogWriter, schema: Schema, meta: VersionMeta, *, window_samples: int) -> None:
        """`meta`: of the version at the end of the log."""
        self.log, self.schema = log, schema
        self._meta = msgspec.structs.replace(meta, restores=0, change={})
        self._window_samples = window_samples

    def execute(self, command: Command) -> int | None:
        """Execute a command; returns the version that carries it, or None if only a trainer can execute it."""
        if command.kind not in ("forget", "rollback"):
            return None
        try:
            meta, arrays, result = self._forget(command) if command.kind == "forget" else self._roll_back(command)
        except (ValueError, EncodeError, UserError) as error:
            meta, arrays, result = self._meta, {}, {"refused": str(error)}
        trainer = msgspec.structs.replace(TrainerMeta.of(meta), seeks={}).to_json()
        positions = positions_to_meta(high_water_marks(self._meta))
        entry = command_entry(command, result, samples_trained=self._meta.samples_trained, positions=positions)
        meta = msgspec.structs.replace(meta, created_ms=0, record_ms=[], executed_commands=[entry], trainer=trainer)
        version = self.log.append(meta, arrays).number
        self._meta = msgspec.structs.replace(meta, restores=0)
        extra = {"command": command.id, "kind": command.kind, "version": version, **result}
        logger.info("command executed", extra=extra)
        return version

    def _forget(self, command: Command) -> tuple[VersionMeta, Arrays, dict[str, Any]]:
        keys = parse_keys(command.body, self.schema)
        features, ids = self._pairs(keys)
        arrays: Arrays = {
            "forgotten.feature": np.array([*(feature for feature, _ in keys), *features], np.uint16),
            "forgotten.id": np.array([*(row_id for _, row_id in keys), *ids], np.int64),
        }
        trainer = TrainerMeta.of(self._meta)
        erasures = [*erasures_from_meta(trainer.erasures), Erasure(tuple(keys), high_water_marks(self._meta))]
        ahead = erasures_ahead(erasures, positions_from_meta(self._meta.positions))
        trainer = msgspec.structs.replace(trainer, erasures=erasures_to_meta(ahead))
        return msgspec.structs.replace(self._meta, trainer=trainer.to_json()), arrays, {"keys": len(keys)}

    def _pairs(self, keys: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
        """Return features and ids of the rows that count pairs with one of these ids, at the end of the log."""
        halves, features, ids = halves_of_pairs(self.schema, keys), [], []
        if halves:
            self.log.sync()
            index = LogIndex(self.log.directory)
            image = VersionImage(index, index.numbers[-1])
            for number in sorted({half.number for half in halves}):
                for rows in image.rows(number, with_values=False):
                    is_pair_n = are_pairs(halves, rows.feature, rows.id)
                    features += rows.feature[is_pair_n].tolist()
                    ids += rows.id[is_pair_n].tolist()
        return features, ids

    def _roll_back(self, command: Command) -> tuple[VersionMeta, Arrays, dict[str, Any]]:
        version = command.body.get("version")
        if type(version) is not int or version < 1:
            raise ValueError(f"{version!r} is not a valid version")
        if command.body.get("skip"):
            raise ValueError("skipping samples needs a running trainer: start one and retry")
        self.log.sync()
        rollback = build_rollback(self.log.directory, version, window_samples=self._window_samples)
        return rollback.meta, rollback.arrays, {"version": rollback.meta.restores, **rollback.result}
