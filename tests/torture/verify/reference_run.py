"""A run without faults over the same records, with each command executed where the other log says."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from springtide.app.config.load import load_config
from springtide.app.training.bootstrap import load_state
from springtide.app.training.commands import CommandExecutor
from springtide.app.training.config import wait_seconds_of
from springtide.app.version_log.commands.queue import Command
from springtide.app.version_log.write.writer import LogWriter
from springtide.stream.batcher import Batcher, BatchSize
from springtide.stream.columns import Batch, RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.positions import Partition
from springtide_client.format.records import CommandEntry
from tests.torture.clicks import message
from tests.torture.cluster.config import CHANGES, TOPIC, TORTURED, WINDOW_SAMPLES, write_settings
from tests.torture.verify.log_contents import LogContents, read_log_contents

BATCHES_PER_VERSION = 20
RECORDS = 1_000  # per call of the decoder
NOW_MS = 1_800_000_000_000


class Change(NamedTuple):
    """The settings, names of CHANGES, from this number of samples on."""

    samples_trained: int
    settings: tuple[str, ...]


class ReferenceRun:
    """A trainer without faults, in this process; it only moves forward."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir()
        self.folder, self.seed, self.offset = folder, seed, 0
        self.executed: dict[str, int] = {}  # command -> at how many samples
        self.changed: list[Change] = []
        self._start([])
        self._random = torch.get_rng_state()  # others in this process use the generator too

    def _start(self, changes: Sequence[str]) -> None:
        """Begin, or go on where the log ends, with some of CHANGES."""
        layers = (CHANGES[name] for name in changes)
        config = load_config(write_settings(self.folder, "127.0.0.1:1", TORTURED, *layers))
        torch.manual_seed(config.train.seed)
        self.log = LogWriter.open(config.log, schema=config.schema)
        self.state = load_state(config, self.log)
        self.desk = CommandExecutor(config.log.path, self.log.epoch, self.state)
        train = config.train
        self.batcher = Batcher(
            train.batch_size,
            wait_seconds_of(config),
            min_batch_size=train.min_batch_size,
            growth=train.batch_growth,
            num_learned=self.state.samples_trained,
        )
        self.decoder = Decoder(config.schema, config.source)
        self.offset = sum(position.offset for position in self.state.stream.positions.values())

    def _change(self, change: "Change") -> None:
        self._append_version()
        self.close()
        self._start(change.settings)
        self.changed.append(change)

    @property
    def num_samples(self) -> int:
        return self.state.samples_trained

    def advance(self, num_samples: int, commands: list[CommandEntry], changes: Sequence["Change"] = ()) -> LogContents:
        """Learn up to `num_samples`, with these commands and changes where they say; return what the log holds then."""
        to_change = list(changes[len(self.changed) :])
        pending = [command for command in commands if command.id not in self.executed]
        num_batches = 0
        torch.set_rng_state(self._random)
        while True:
            while to_change and to_change[0].samples_trained == self.num_samples:
                self._change(to_change.pop(0))
            while pending and pending[0].samples_trained == self.num_samples:
                self._execute(pending.pop(0))
            if self.num_samples >= num_samples:
                break
            batch = self._next_batch(num_samples - self.num_samples)
            if num_batches % BATCHES_PER_VERSION == 0 or self.state.learner.count_keys(batch).need_checkpoint:
                self._append_version()
            self.state.learn(batch, limit_ms=NOW_MS)
            num_batches += 1
        assert not pending
        assert not to_change
        self._append_version()
        self._random = torch.get_rng_state()
        self.log.sync()
        return read_log_contents(self.log.config.path, window_samples=WINDOW_SAMPLES)

    def _next_batch(self, max_rows: int) -> Batch:
        while self.batcher.num_rows < self.batcher.full_rows:
            offsets = range(self.offset, self.offset + RECORDS)
            values = [message(self.seed, offset) for offset in offsets]
            raw = RawRecords.from_messages(Partition(TOPIC, 0), values, offsets=list(offsets))
            self.batcher.add(self.decoder.decode(raw, NOW_MS))
            self.offset += RECORDS
        if max_rows < self.batcher.full_rows:
            self.batcher.size = BatchSize(max_rows)  # the other run's last batch was short
        batch = self.batcher.take()
        assert batch is not None
        return batch

    def _execute(self, entry: CommandEntry) -> None:
        """Execute a command by the trainer's own handlers."""
        self._append_version()
        self.executed[entry.id] = entry.samples_trained
        is_forget = entry.kind == "forget"
        body = {"keys": msgspec.to_builtins(entry.keys)} if is_forget else {"limits": entry.result.get("limits")}
        if not entry.is_refused:
            command = Command(entry.id, entry.kind, body)
            self.desk._handler(command)(command.body)

    def _append_version(self) -> None:
        self.log.append(*self.state.checkpoint(created_ms=1, complete_until_ms=1))

    def close(self) -> None:
        self.state.learner.table.close()
        self.log.close()
