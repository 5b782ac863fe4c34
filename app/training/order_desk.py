"""Orders to a running trainer, executed between batches; order and result are part of the next version."""

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from springtide_client.errors import EncodeError
from springtide_client.keys import id_of

from app.live_limits import nested, read_limits
from app.training.state import TrainingState
from app.versions.commands import Order, Orders
from app.versions.fault_points import reach

logger = logging.getLogger(__name__)


class OrderDesk:
    """Takes orders in, one after the other in the order of their ids, each exactly once."""

    kinds = ("forget", "limits")

    def __init__(self, log_path: Path, epoch: int, state: TrainingState) -> None:
        self._orders = Orders(log_path, epoch, state.executed_orders)
        self._state = state
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
                result = self._handler(order)(order.body)
            except (ValueError, EncodeError) as error:
                result = {"refused": str(error)}
            logger.info("order executed", extra={"order": order.id, "kind": order.kind, **result})
            told = {"id": order.id, "kind": order.kind, "samples_trained": self._state.samples_trained}
            self._state.note_order({**told, "result": result, **_lasting(order)})
            self._told.append(order.id)
            self._waiting.popleft()
            reach("after an order is executed")

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
        keys = keys_of(self._state, body)
        features_N = np.array([feature for feature, _ in keys], np.uint16)
        self._state.learner.table.forget(features_N, np.array([row_id for _, row_id in keys], np.int64))
        return {"keys": len(keys)}

    def _limits(self, body: dict[str, Any]) -> dict[str, Any]:
        limits = read_limits(body.get("limits"), self._state.schema)
        self._state.change_limits(limits)
        return {"limits": nested(limits)}


def keys_of(state: TrainingState, body: dict[str, Any]) -> list[tuple[int, int]]:
    """The keys that an order names, each once; ValueError where one is none."""
    keys: dict[tuple[int, int], None] = {}
    named = body.get("keys")
    for key in named if isinstance(named, list) else []:
        if not isinstance(key, dict) or key.get("feature") not in state.schema.features or "id" not in key:
            raise ValueError(f"{key!r} is no key of this log")
        keys[state.schema.number(key["feature"]), id_of(key["id"])[0]] = None
    if not keys:
        raise ValueError("the order names no keys")
    return list(keys)


def _lasting(order: Order) -> dict[str, Any]:
    """What a later reader of the log must know: what was forgotten stays forgotten, whatever is gone back to."""
    return {"keys": order.body["keys"]} if order.kind == "forget" and "keys" in order.body else {}
