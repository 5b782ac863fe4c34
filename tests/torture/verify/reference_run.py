"""The run that nobody disturbs: the same records in one go, the orders where the other log says they were executed."""

from pathlib import Path

import msgspec
import torch
from springtide_client.format.records import CommandEntry

from app.config.load import load_config
from app.training.bootstrap import load_state
from app.training.commands import CommandExecutor
from app.version_log.commands.queue import Command
from app.version_log.write.writer import LogWriter
from stream.batcher import Batcher
from stream.columns import Batch
from stream.decode.decoder import Decoder
from stream.positions import Partition
from stream.records import RawRecords
from tests.torture.clicks import message
from tests.torture.cluster.config import TOPIC, WINDOW_SAMPLES, write_config
from tests.torture.verify.log_contents import LogContents, read_log_contents

BATCHES_A_VERSION = 20
RECORDS = 1_000  # decoded at a time
NOW_MS = 1_800_000_000_000


class ReferenceRun:
    """Moves forward only."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir()
        self.seed, self.offset = seed, 0
        config = load_config(write_config(folder / "springtide.toml", folder, address="127.0.0.1:1"))
        torch.manual_seed(config.train.seed)
        self.log = LogWriter.open(config.log, schema=config.schema)
        self.state = load_state(config, self.log, num_threads=config.train.num_threads)
        self.desk = CommandExecutor(config.log.path, self.log.epoch, self.state)
        self.batcher = Batcher(config.train.batch_size, config.train.max_wait_seconds)
        self.decoder = Decoder(config.schema)
        self._random = torch.get_rng_state()  # others in this process draw too
        self.executed: dict[str, int] = {}  # order -> at how many samples

    @property
    def num_samples(self) -> int:
        return self.state.samples_trained

    def advance(self, num_samples: int, orders: list[CommandEntry]) -> LogContents:
        """Learn up to here, and say what the log holds then."""
        waiting = [order for order in orders if order.id not in self.executed]
        num_batches = 0
        torch.set_rng_state(self._random)
        while True:
            while waiting and waiting[0].samples_trained == self.num_samples:
                self._execute(waiting.pop(0))
            if self.num_samples >= num_samples:
                break
            batch = self._next_batch(num_samples - self.num_samples)
            if num_batches % BATCHES_A_VERSION == 0 or self.state.learner.needs_checkpoint(batch):
                self._cut()
            self.state.learn(batch, limit_ms=NOW_MS)
            num_batches += 1
        assert not waiting
        self._cut()
        self._random = torch.get_rng_state()
        self.log.sync()
        return read_log_contents(self.log.config.path, window_samples=WINDOW_SAMPLES)

    def _next_batch(self, most: int) -> Batch:
        while self.batcher.num_rows < self.batcher.batch_size:
            offsets = range(self.offset, self.offset + RECORDS)
            values = [message(self.seed, offset) for offset in offsets]
            raw = RawRecords.from_messages(Partition(TOPIC, 0), values, offsets=list(offsets))
            self.batcher.add(self.decoder.decode(raw, NOW_MS))
            self.offset += RECORDS
        if most < self.batcher.batch_size:
            self.batcher.batch_size = most  # the last batch of the other run was short
        batch = self.batcher.take()
        assert batch is not None
        return batch

    def _execute(self, entry: CommandEntry) -> None:
        """Through the trainer's own handlers."""
        self._cut()
        self.executed[entry.id] = entry.samples_trained
        is_forget = entry.kind == "forget"
        body = {"keys": msgspec.to_builtins(entry.keys)} if is_forget else {"limits": entry.result.get("limits")}
        if not entry.is_refused:
            order = Command(entry.id, entry.kind, body)
            self.desk._handler(order)(order.body)

    def _cut(self) -> None:
        self.log.append(*self.state.checkpoint(created_ms=1, complete_until_ms=1))

    def close(self) -> None:
        self.state.learner.table.close()
        self.log.close()
