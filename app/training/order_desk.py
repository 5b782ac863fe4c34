"""Orders to a running trainer, executed between batches; order and result are part of the next version."""

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from springtide_client.errors import EncodeError

from app.live_limits import nested, read_limits
from app.training.state import TrainingState
from app.versions.clerk import keys_of
from app.versions.commands import Order, Orders, entry_of
from app.versions.fault_points import reach
from stream.positions import told_positions

RollBack = Callable[[Order], dict[str, Any] | None]

logger = logging.getLogger(__name__)


class PutOffError(Exception):
    """The order cannot be executed now, and may be in a moment."""


class OrderDesk:
    """Takes orders in, one after the other in the order of their ids, each exactly once."""

    kinds = ("forget", "limits", "rollback")

    def __init__(self, log_path: Path, epoch: int, state: TrainingState, *, roll_back: RollBack | None = None) -> None:
        """`roll_back` executes such an order: it tells of it in a version of its own, and everything is loaded anew.

        Where it gives a result instead, nothing has happened; PutOffError leaves the order for later.
        """
        self._orders = Orders(log_path, epoch, state.executed_orders)
        self._state = state
        self._roll_back = roll_back
        self._waiting: deque[Order] = deque()  # claimed, not executed
        self._told: list[str] = []  # the ids of what the next version tells

    @property
    def has_new(self) -> bool:
        """Whether there is an order to execute."""
        return bool(self._waiting) or self._orders.has_new()

    def execute(self) -> None:
        """Every order that waits. Call it right after a cut: what an order moves must fit beside nothing.

        SpillError where the spill takes no rows: what is not executed waits for the next call.
        """
        self._waiting += self._orders.claim()
        while self._waiting:
            order = self._waiting[0]
            try:
                result = self._result(order)
            except PutOffError:
                return
            if result is None:
                return  # the state that this desk worked for is no more: another one takes in the rest
            logger.info("order executed", extra={"order": order.id, "kind": order.kind, **result})
            at = self._state
            positions = told_positions(at.positions)
            at.note_order(entry_of(order, result, samples_trained=at.samples_trained, positions=positions))
            self._told.append(order.id)
            self._waiting.popleft()
            reach("after an order is executed")

    def _result(self, order: Order) -> dict[str, Any] | None:
        try:
            if order.kind == "rollback" and self._roll_back is not None:
                return self._roll_back(order)
            return self._handler(order)(order.body)
        except (ValueError, EncodeError) as error:
            return {"refused": str(error)}

    def told(self, version: int) -> None:
        """This version carries what was executed since the one before."""
        for order_id in self._told:
            self._orders.executed(order_id, version)
        self._told.clear()

    def retire(self, durable: int) -> None:
        """Orders that durable versions carry are done with."""
        self._orders.retire(durable)

    def _handler(self, order: Order) -> Callable[[dict[str, Any]], dict[str, Any]]:
        if order.kind == "forget":
            return self._forget
        if order.kind == "limits":
            return self._limits
        raise ValueError(f"this trainer does not execute {order.kind or 'unreadable'} orders")

    def _forget(self, body: dict[str, Any]) -> dict[str, Any]:
        keys = keys_of(body, self._state.schema)
        features_N = np.array([feature for feature, _ in keys], np.uint16)
        self._state.learner.table.forget(features_N, np.array([row_id for _, row_id in keys], np.int64))
        return {"keys": len(keys)}

    def _limits(self, body: dict[str, Any]) -> dict[str, Any]:
        limits = read_limits(body.get("limits"), self._state.schema)
        self._state.change_limits(limits)
        return {"limits": nested(limits)}
