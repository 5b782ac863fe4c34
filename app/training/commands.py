"""Orders to a running trainer, executed between batches; order and result are part of the next version."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from springtide_client.errors import EncodeError, LogError
from springtide_client.format.records import CommandEntry, StreamPosition

from app.training.state.training_state import TrainingState
from app.version_log.commands.erasures import erasures_of
from app.version_log.commands.limits import limits_document, parse_limits
from app.version_log.commands.offline import read_keys
from app.version_log.commands.queue import Command, CommandQueue, command_entry
from app.version_log.failpoints import failpoint
from embeddings.errors import SpillError
from stream.positions import positions_to_meta

RollBack = Callable[[Command], dict[str, Any] | None]

logger = logging.getLogger(__name__)


class PostponedError(Exception):
    """The order cannot be executed now, and may be in a moment."""


class CommandExecutor:
    """Takes orders in, one after the other in the order of their ids, each exactly once."""

    kinds = ("forget", "limits", "rollback")

    def __init__(self, log_path: Path, epoch: int, state: TrainingState, *, roll_back: RollBack | None = None) -> None:
        """`roll_back` executes such an order: it tells of it in a version of its own, and everything is loaded anew.

        Where it gives a result instead, nothing has happened; PostponedError leaves the order for later.
        """
        self._orders = CommandQueue(log_path, epoch, state.executed_commands)
        self._state = state
        self._roll_back = roll_back
        self._waiting: deque[Command] = deque()  # claimed, not executed
        self._told: list[str] = []  # the ids of what the next version tells

    @property
    def has_pending(self) -> bool:
        """Whether there is an order to execute."""
        return bool(self._waiting) or self._orders.has_pending()

    def execute(self) -> None:
        """Every order that waits. Call it right after a cut: what an order moves must fit beside nothing.

        SpillError where the spill takes no rows: what is not executed waits for the next call.
        """
        self._waiting += self._orders.claim()
        while self._waiting:
            order = self._waiting[0]
            try:
                result = self._result(order)
            except PostponedError:
                return
            if result is None:
                return  # the state that this desk worked for is no more: another one takes in the rest
            logger.info("order executed", extra={"order": order.id, "kind": order.kind, **result})
            self._note(order, result)
            self._waiting.popleft()
            failpoint("after a command is executed")

    def _result(self, order: Command) -> dict[str, Any] | None:
        try:
            if order.kind == "rollback" and self._roll_back is not None:
                return self._roll_back(order)
            return self._handler(order)(order.body)
        except (ValueError, EncodeError) as error:
            return {"refused": str(error)}

    def reexecute_lost(self, entries: Iterable[CommandEntry]) -> None:
        """Executes again what versions said that are lost, and no file does any more; the next version tells it.

        What was forgotten is hidden up to where that was.
        """
        for entry in entries:
            order_id, kind = entry.id, entry.kind
            if entry.is_refused or kind not in ("forget", "limits"):
                logger.warning("an order is lost with its version", extra={"order": order_id, "kind": kind})
                continue
            order = Command(
                order_id, kind, {"keys": msgspec.to_builtins(entry.keys), "limits": entry.result.get("limits")}
            )
            try:
                self._note(order, self._handler(order)(order.body), entry.positions)
            except SpillError as error:
                raise LogError(f"an order of a lost version cannot be executed again: {error}") from error
            except (ValueError, EncodeError) as error:
                logger.warning("an order is lost with its version", extra={"order": order_id, "reason": str(error)})

    def on_published(self, version: int) -> None:
        """This version carries what was executed since the one before."""
        for order_id in self._told:
            self._orders.mark_executed(order_id, version)
        self._told.clear()

    def acknowledge(self, durable: int) -> None:
        """Orders that durable versions carry are done with."""
        self._orders.acknowledge(durable)

    def _note(
        self, order: Command, result: dict[str, Any], positions: Mapping[str, StreamPosition] | None = None
    ) -> None:
        at = self._state
        entry = command_entry(
            order,
            result,
            samples_trained=at.samples_trained,
            positions=positions or positions_to_meta(at.max_positions),
        )
        at.add_executed_command(entry)
        at.add_erasures(erasures_of([entry], at.schema))
        self._told.append(order.id)

    def _handler(self, order: Command) -> Callable[[dict[str, Any]], dict[str, Any]]:
        if order.kind == "forget":
            return self._forget
        if order.kind == "limits":
            return self._limits
        raise ValueError(f"this trainer does not execute {order.kind or 'unreadable'} orders")

    def _forget(self, body: dict[str, Any]) -> dict[str, Any]:
        keys = read_keys(body, self._state.schema)
        features_N = np.array([feature for feature, _ in keys], np.uint16)
        self._state.learner.table.forget(features_N, np.array([row_id for _, row_id in keys], np.int64))
        return {"keys": len(keys)}

    def _limits(self, body: dict[str, Any]) -> dict[str, Any]:
        limits = parse_limits(body.get("limits"), self._state.schema)
        self._state.change_limits(limits)
        return {"limits": limits_document(limits)}
