"""One pass over files by the trainer's own parts: every sample is scored, then learned. No broker, no log."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from msgspec import structs

from springtide.app.config.load import Config
from springtide.app.errors import UserError
from springtide.app.tools.evaluate.file_source import FileSource
from springtide.app.tools.evaluate.scores import EvaluatedSamples
from springtide.app.training.batches import BatchStream
from springtide.app.training.bootstrap import state_without_log
from springtide.stream.columns import Batch
from springtide_client.system.clock import wall_ms

VERSION_SAMPLES = 65_536  # after so many a trainer would have published: policies are applied as for a version
SAMPLES = ("logits", "labels", "weights")
SCORES = "state.scores."


class Evaluation:
    """A trainer's state, fed from files. `run` is called once.

    Batches are full, as with `max_wait_seconds = inf`: what is learned does not depend on how fast the machine is.
    """

    def __init__(self, config: Config, source: FileSource) -> None:
        """The spill is in `[table] disk_path`. UserError if the configuration cannot be used."""
        config = replace(config, train=structs.replace(config.train, max_wait_seconds=float("inf")))
        torch.set_num_threads(config.train.num_threads)
        self.config, self.source = config, source
        self.state = state_without_log(config)
        self._batches = BatchStream(config, {}, until_end=True, source=source)
        self._num_since_version = 0
        self._parts: list[dict[str, Any]] = []
        self._first_dead_letter = ""

    def run(self, on_batch: Callable[["Evaluation"], bool | None] = lambda evaluation: None) -> None:
        """Learn every row. `on_batch` is called after each batch; True ends the pass there.

        UserError if the files hold no sample, or a line that cannot be read.
        """
        self._batches.start()
        while not self._batches.finished:
            self._batches.poll(0.0)
            if (batch := self._batches.take()) is not None:
                self._learn(batch)
                if on_batch(self):
                    break
        self._take_version()
        if not self.num_samples:
            raise UserError(self._no_samples())

    @property
    def num_samples(self) -> int:
        """Samples learned so far."""
        return self.state.samples_trained

    @property
    def fraction(self) -> float:
        """How much of the files, from 0 to 1, is learned."""
        read = max(self.source.num_rows, 1)
        learned = self.num_samples + self.num_dropped + sum(self.dead_letters.values())
        return self.source.fraction * learned / read

    @property
    def num_dropped(self) -> int:
        """Negatives that were dropped."""
        return self.state.stream.num_dropped

    @property
    def dead_letters(self) -> dict[str, int]:
        """Rows that cannot be learned, by reason."""
        return self.state.stream.dead_letters

    @property
    def first_dead_letter(self) -> str:
        """The first row that cannot be learned and why; "" if there is none."""
        return self._first_dead_letter

    def samples(self) -> EvaluatedSamples:
        """Return every sample learned, in order."""
        arrays = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        row_N = self.source.sample_rows()[: self.num_samples]
        links = self.config.schema.label_links
        values = frozenset(number for number, link in enumerate(links) if link != "logit")
        groups = {name: array for name, array in arrays.items() if name not in SAMPLES}
        return EvaluatedSamples(arrays["logits"], arrays["labels"], arrays["weights"], row_N, values, groups)

    def close(self) -> None:
        """Drop the rows in memory and in the spill."""
        self._batches.close()
        self.state.learner.table.close()

    def _learn(self, batch: Batch) -> None:
        state = self.state
        if self._num_since_version >= VERSION_SAMPLES or state.learner.count_keys(batch).need_checkpoint:
            self._take_version()
        if batch.dead_letters and not self._first_dead_letter:
            letter = batch.dead_letters[0]
            self._first_dead_letter = f"row {letter.offset + 1:,}: {letter.reason}: {letter.detail}"
        limit_ms = wall_ms() + int(self.config.source.max_future_seconds * 1000)
        state.learn(batch, next_batch=self._batches.peek(), limit_ms=limit_ms)
        self._num_since_version += len(batch)

    def _take_version(self) -> None:
        """Do what a trainer does for a version, and keep nothing of it but the scored samples."""
        _, arrays = self.state.checkpoint(created_ms=wall_ms(), complete_until_ms=0, net={})
        scores = {name.removeprefix(SCORES): array for name, array in arrays.items() if name.startswith(SCORES)}
        if "logits" in scores:
            self._parts.append(
                {name: scores[name] for name in scores if name in SAMPLES or name.startswith("ranking.")}
            )
        self._num_since_version = 0

    def _no_samples(self) -> str:
        if not self.source.num_rows:
            return "there is no row to learn: the files are empty"
        counts = ", ".join(f"{num:,} {reason}" for reason, num in sorted(self.dead_letters.items()))
        return f"no row can be learned ({counts}); {self.first_dead_letter}"
