"""Executes admin commands on a running trainer, between batches; the next version records each with its result."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from springtide.app.training.state.training_state import TrainingState
from springtide.app.version_log.commands.limits import limits_document, parse_limits
from springtide.app.version_log.commands.queue import Command, CommandQueue, command_entry
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.trainer_meta import erasures_of, halves_of_pairs, parse_keys
from springtide.embeddings.errors import SpillError
from springtide.stream.positions import positions_to_meta
from springtide_client.errors import EncodeError, LogError
from springtide_client.format.records import CommandEntry, StreamPosition

Result = dict[str, Any]

ROOM_SECONDS = 1.0  # so long a command waits for room in the spill before it is postponed

logger = logging.getLogger(__name__)


class PostponedError(Exception):
    """The command cannot be executed now, but perhaps in a moment."""


class CommandExecutor:
    """Executes pending commands in the order of their ids, each exactly once."""

    kinds = ("forget", "limits", "rollback")

    def __init__(
        self,
        log_path: Path,
        epoch: int,
        state: TrainingState,
        *,
        roll_back: Callable[[Command], None] | None = None,
    ) -> None:
        """`roll_back` executes a rollback: it publishes a version of its own and replaces the state and this executor.

        It raises ValueError if it refuses the command and PostponedError to leave it for later.
        """
        self._ranks = state.ranks
        # rank 0 alone reads commands, and tells the others
        self._queue = CommandQueue(log_path, epoch, state.executed_commands) if self._ranks.is_first else None
        self._state = state
        self._roll_back = roll_back
        self._claimed: deque[Command] = deque()  # not executed yet
        self._unpublished: list[str] = []  # ids of executed commands that the next version records
        self._acknowledged = 0  # up to this version

    @property
    def has_pending(self) -> bool:
        """True if there is a command to execute."""
        return bool(self._claimed) or (self._queue is not None and self._queue.has_pending())

    @property
    def has_unpublished(self) -> bool:
        """True if the next version carries a command."""
        return bool(self._unpublished)

    def execute(self) -> None:
        """Execute every pending command. Call it right after a checkpoint: the rows that it evicts need room.

        All ranks. While a spill has no room the commands wait for the next call.
        """
        self._claimed += self._ranks.broadcast([] if self._queue is None else self._queue.claim())
        while self._claimed:
            command = self._claimed[0]
            try:
                if command.kind == "rollback" and self._roll_back is not None:
                    self._roll_back(command)
                    return  # another executor continues, with the state that was loaded
                result = self._execute_on_all(command)
            except PostponedError:
                return
            except (ValueError, EncodeError) as error:
                result = {"refused": str(error)}
            logger.info("command executed", extra={"command": command.id, "kind": command.kind, **result})
            self._record(command, result)
            self._claimed.popleft()
            failpoint("after a command is executed")

    def reexecute_lost(self, entries: Iterable[CommandEntry]) -> None:
        """Execute again commands whose versions were lost to corruption, and whose files are gone.

        Erased ids are filtered up to the positions at which they were first erased.
        """
        for entry in entries:
            if entry.is_refused or entry.kind not in ("forget", "limits"):
                logger.warning("a command is lost with its version", extra={"command": entry.id, "kind": entry.kind})
                continue
            body = {"keys": msgspec.to_builtins(entry.keys), "limits": entry.result.get("limits")}
            command = Command(entry.id, entry.kind, body)
            try:
                self._record(command, self._handler(command)(body), entry.positions)
            except SpillError as error:
                raise LogError(f"a command of a lost version cannot be executed again: {error}") from error
            except (ValueError, EncodeError) as error:
                logger.warning("a command is lost with its version", extra={"command": entry.id, "reason": str(error)})

    def on_published(self, version: int) -> None:
        """Note that this version records everything executed so far."""
        if self._queue is not None:
            for command_id in self._unpublished:
                self._queue.mark_executed(command_id, version)
        self._unpublished.clear()

    def acknowledge(self, durable: int) -> None:
        """Unlink the files of commands that versions up to this one record."""
        if self._queue is not None and durable != self._acknowledged:  # every version asks, and a folder is read
            self._acknowledged = durable
            self._queue.acknowledge(durable)

    def _record(self, command: Command, result: Result, positions: Mapping[str, StreamPosition] | None = None) -> None:
        state = self._state
        positions = positions or positions_to_meta(state.stream.max_positions)
        entry = command_entry(command, result, samples_trained=state.samples_trained, positions=positions)
        state.add_executed_command(entry)
        state.stream.add_erasures(erasures_of([entry], state.schema))
        self._unpublished.append(command.id)

    def _execute_on_all(self, command: Command) -> Result:
        """Carry a command out; an error of one rank is one of all, so that no version records it half done."""
        with self._ranks.exchange.failing_together():
            return self._handler(command)(command.body)

    def _handler(self, command: Command) -> Callable[[dict[str, Any]], Result]:
        if command.kind == "forget":
            return self._forget
        if command.kind == "limits":
            return self._change_limits
        raise ValueError(f"this trainer does not execute {command.kind or 'unreadable'} commands")

    def _forget(self, body: dict[str, Any]) -> Result:
        schema = self._state.schema
        keys = parse_keys(body, schema)
        features_N = np.array([feature for feature, _ in keys], np.uint16)
        ids_N = np.array([row_id for _, row_id in keys], np.int64)
        own_N = self._ranks.is_own(features_N, ids_N)
        features_N, ids_N = features_N[own_N], ids_N[own_N]
        table, memory = self._state.learner.table, self._state.learner.memory
        if memory is not None and (halves := halves_of_pairs(schema, keys)):
            pairs_M, pair_ids_M = memory.keys_of_pairs(halves)
            features_N, ids_N = np.append(features_N, pairs_M), np.append(ids_N, pair_ids_M)
        if self._ranks.any_rank(not table.has_room(len(ids_N), ROOM_SECONDS)):
            raise PostponedError
        table.forget(features_N, ids_N)
        remembered = {schema.memory_number(one) for one in schema.remembered}
        return {"keys": sum(feature not in remembered for feature, _ in keys)}

    def _change_limits(self, body: dict[str, Any]) -> Result:
        """Change limits on all ranks, or on none: also if a spill cannot take the rows that leave memory."""
        state, refusal, is_unchanged = self._state, "", False
        limits = parse_limits(body.get("limits"), state.schema)
        before = {name: state.limits.value(*name) for name in limits}
        try:
            state.change_limits(limits)
        except ValueError as error:
            refusal, is_unchanged = str(error), True
        except SpillError as error:
            refusal = f"the rows that leave memory cannot be spilled: {error}"
        if (found := self._ranks.first_text(refusal)) is not None:
            if not is_unchanged:
                with suppress(SpillError):  # rows that cannot be spilled stay in memory
                    state.change_limits(before)
            raise ValueError(found[1])
        return {"limits": limits_document(limits)}
