"""Keeps the items of the newest view ready to be searched, in a thread of its own.

Items that a version brings are encoded at once, and compared one by one until the index is rebuilt.
Each new version changes the towers a little, and with them every vector: the index is rebuilt all the time, within a
share of the thread's time.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from springtide_client.features import Features
from springtide_client.format.tensors import Arrays

from app.processes.priority import take_short_slices
from app.serving.http.errors import ApiError, not_ready
from app.serving.metrics.registry import MetricsRegistry
from app.serving.model.served_view import ServedView
from app.serving.model.view import ModelView
from app.serving.retrieve.item_set import ItemSet
from app.serving.retrieve.search import ServedItems
from app.serving.retrieve.towers import Towers, TowerTemplate
from app.serving.retrieve.vector_index import MISSING_USEARCH, build_hnsw, has_usearch
from app.version_log.items import ItemLayout
from app.version_log.read.replay_state import newest_items

HNSW_ITEMS = 20_000  # fewer are compared one by one
REBUILD_SHARE = 0.1  # of the thread's time
POLL_SECONDS = 0.02
RECALL_SECONDS, RECALL_USERS = 10.0, 16
TIE = 1e-4  # scores closer than this are equal: rounding differs by the place of an item in a batch

logger = logging.getLogger(__name__)


class Retriever:
    """`served` is None until the first view of a model with towers is encoded."""

    def __init__(
        self,
        newest_view: Callable[[], ModelView | None],
        metrics: MetricsRegistry,
        *,
        hnsw_items: int = HNSW_ITEMS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._newest_view, self._metrics, self._clock = newest_view, metrics, clock
        self._hnsw_items = hnsw_items
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="springtide-retriever", daemon=True)
        self._template: TowerTemplate | None = None
        self._template_of: object = None  # what the template depends on
        self._reason = "the items are being read"
        self._built_at = self._built_seconds = 0.0
        self._has_warned = False
        self._users: deque[Features] = deque(maxlen=RECALL_USERS)
        self._checked_at = clock()
        self.served: ServedItems | None = None

    def require(self) -> ServedItems:
        """Return what requests are answered from; ApiError 503 while there is nothing, 422 without towers."""
        served = self.served
        if served is not None:
            return served
        if (view := self._newest_view()) is not None and self._is_without_towers(view):
            name = view.client_view.base.manifest.model.name
            raise ApiError(
                422, "no_towers", f'the served model "{name}" has no towers', 'train [model] name = "two_tower"'
            )
        raise not_ready(self._reason)

    def note(self, user: Features) -> None:
        """Note who asked: recall is measured for the last of them."""
        self._users.append(user)

    def start(self) -> None:
        """Begin to follow the views."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; does not block."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout=5.0)

    def step(self) -> None:
        """1. Follow the newest view. 2. If it is time, encode all items again, and rebuild the index."""
        view = self._newest_view()
        if view is None or not isinstance(view, ServedView):
            return
        if self._is_without_towers(view):
            self.served = None
            return
        self._advance(view)
        if self.served is None or self._clock() - self._built_at >= self._built_seconds / REBUILD_SHARE:
            self._rebuild(view)
        if self.served is not None:
            view.items.drop_through(self.served.towers.view.version)

    def _run(self) -> None:
        take_short_slices()
        seen: object = None
        while not self._stopping.is_set():
            view = self._newest_view()
            if view is not None and (view is not seen or self._is_stale(view)):
                seen = view
                try:
                    self.step()
                except Exception as error:
                    # what was served stays served: a defect here must not end the thread
                    logger.exception("reading the items failed")
                    self._reason = f"the items cannot be read: {error}"
                    self._stopping.wait(1.0)
            self._check_recall()
            self._stopping.wait(POLL_SECONDS)

    def _is_stale(self, view: ModelView) -> bool:
        served = self.served
        if served is None or self._is_without_towers(view):
            return False
        is_time = self._clock() - self._built_at >= self._built_seconds / REBUILD_SHARE
        return served.base.version < view.version and is_time

    @staticmethod
    def _is_without_towers(view: ModelView) -> bool:
        return ItemLayout.of(view.schema, view.client_view.base.manifest.model) is None

    def _towers(self, view: ServedView) -> Towers:
        base = view.client_view.base
        key = (base.manifest.model, base.manifest.meta.fingerprint)
        if self._template is None or self._template_of != key:
            self._template, self._template_of = TowerTemplate(view), key
            self.served = None  # vectors of another net mean nothing to this one
        return self._template.of(view)

    def _advance(self, view: ServedView) -> None:
        """Serve the view: encode the items of the versions since the served one."""
        towers, served = self._towers(view), self.served
        if served is None or served.towers.view.version >= view.version:
            return
        newer = ItemSet.encode(view.items.between(served.towers.view.version, view.version), towers)
        self._serve(served.followed_by(towers, newer))

    def _rebuild(self, view: ServedView) -> None:
        """Encode all items at this view, and serve them; then build their graph while later views are followed."""
        began = self._clock()
        towers = self._towers(view)
        base = ItemSet.encode(self._items(view), towers)
        wants_hnsw = len(base) >= self._hnsw_items
        if wants_hnsw and not has_usearch():
            wants_hnsw = False
            if not self._has_warned:
                self._has_warned = True
                logger.warning("all items are compared for each request", extra={"reason": MISSING_USEARCH})
        first = ServedItems(towers, base, towers, ItemSet.encode(None, towers))
        if not wants_hnsw or self.served is None:
            self._serve(first)
        if wants_hnsw:
            index = build_hnsw(base.vectors_IO, between=self._follow_meanwhile)
            if index is None or self._template is not towers.template:
                return
            indexed = replace(base, index=index)
            assert self.served is not None
            now = self.served.towers
            assert isinstance(now.view, ServedView)
            since = ItemSet.encode(now.view.items.between(base.version, now.view.version), now)
            self._serve(replace(first, base=indexed).followed_by(now, since))
        self._built_at = self._clock()
        self._built_seconds = self._built_at - began

    def _items(self, view: ServedView) -> Arrays | None:
        """Return the items at a view: those that are served, with those of a base that is newer, after a gap."""
        served, base = self.served, view.client_view.base
        if served is None:
            return view.items.at(base, view.version)
        parts = [served.base.columns, served.changed.columns]
        if base.items is not None:
            is_newer = base.manifest.number > served.base.version
            parts.insert(2 if is_newer else 0, base.items)
        if (since := view.items.between(base.manifest.number, view.version)) is not None:
            parts.append(since)
        parts = [part for part in parts if len(part["id"])]
        return newest_items(parts) if parts else None

    def _follow_meanwhile(self) -> bool:
        """Follow a newer view, if there is one; False if the build must end."""
        view = self._newest_view()
        if isinstance(view, ServedView):
            self._advance(view)
        return self.served is not None and not self._stopping.is_set()

    def _serve(self, served: ServedItems) -> None:
        self.served = served
        metrics, view = self._metrics, served.towers.view
        metrics.set("springtide_retrieve_items", float(len(served.base)))
        metrics.set("springtide_retrieve_changed_items", float(len(served.changed)))
        metrics.set("springtide_retrieve_version", view.version)
        age_ms = view.client_view.meta.created_ms - served.base.created_ms
        metrics.set("springtide_retrieve_index_age_seconds", max(0, age_ms) / 1000)

    def _check_recall(self) -> None:
        """Compare the index with exact search, for the users who asked last."""
        served, users = self.served, list(self._users)
        if served is None or not users or self._clock() - self._checked_at < RECALL_SECONDS:
            return
        self._checked_at = self._clock()
        self._users.clear()
        self._metrics.set("springtide_retrieve_recall", recall(served, users))


def recall(served: ServedItems, users: Sequence[Features], k: int = 10) -> float:
    """Return which share of the k best items of exact search the index finds, over some users.

    An item as good as the worst of them counts as one of them (as in ann-benchmarks): which of equal items is found
    does not matter.
    """
    nothing = np.zeros(0, np.int64)
    shares = []
    for user in users:
        exact_K, found_K = (
            served.retrieve(user, k, wanted={}, excluded=nothing, exact=is_exact)[1] for is_exact in (True, False)
        )
        shares.append((found_K >= exact_K[-1] - TIE).sum() / len(exact_K) if len(exact_K) else 1.0)
    return float(np.mean(shares))
