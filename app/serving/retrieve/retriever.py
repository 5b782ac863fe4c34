"""Keeps the items of the newest view ready to be searched, in a thread of its own.

Items that a version brings are encoded at once, and searched beside the index until it is rebuilt.
Each new version changes the towers a little, and with them every vector: the index is rebuilt all the time, within a
share of the thread's time.
"""

# N users, C categorical features, R rows looked at
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from springtide.app.processes.tuning import take_short_slices
from springtide.app.serving.http.errors import ApiError, not_ready, version_gone
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.served_view import WHOLE, Part, ServedView
from springtide.app.serving.retrieve.served_items import MIN_CANDIDATES, ItemSet, ServedItems
from springtide.app.serving.retrieve.towers import Towers, TowerTemplate, UserInputs
from springtide.app.serving.retrieve.vector_index import FloatArray, InvertedFile
from springtide.app.serving.retrieve.warmup import warm_up
from springtide.app.version_log.items import ItemColumns, ItemLayout
from springtide_client.errors import PartError
from springtide_client.features import Features, Ragged
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema

INDEXED_ITEMS = 20_000  # fewer are compared one by one
REBUILD_SHARE = 0.1  # of the thread's time
CHANGED, REBUILD_SHARE_OF_CHANGED = 0.1, 0.3  # more once so many of the items have changed
POLL_SECONDS = 0.02
PART_SECONDS = 0.2  # until other servers are asked again
RECALL_SECONDS, RECALL_USERS = 10.0, 32
LEAST_RECALL = 0.97  # below, twice as many vectors are compared
TIE = 1e-4  # scores closer than this are equal: rounding differs by the place of an item in a batch

logger = logging.getLogger(__name__)


class Retriever:
    """`served` is None until the first view of a model with towers is encoded."""

    def __init__(
        self,
        newest_view: Callable[[], ServedView | None],
        metrics: MetricsRegistry,
        *,
        indexed_items: int = INDEXED_ITEMS,
        part: Part = WHOLE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The items are those whose rows are in `part`."""
        self._part = part
        # at the last versions, oldest first: other servers, which follow the log by themselves, ask for one of them
        self._kept: deque[ServedItems] = deque(maxlen=max(1, part.num_kept_views))
        self._lock = threading.Lock()
        self._template: tuple[object, TowerTemplate] | None = None  # with what it depends on
        self._newest_view, self._metrics, self._clock = newest_view, metrics, clock
        self._indexed_items = indexed_items
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="springtide-retriever", daemon=True)
        self._reason = "the items are being read"
        self._built_at = self._built_seconds = 0.0
        self._users: deque[UserInputs] = deque(maxlen=RECALL_USERS)
        self._checked_at = clock()
        self._was_asked = False
        self.served: ServedItems | None = None

    def require(self) -> ServedItems:
        """Return what requests are answered from; ApiError 503 while there is nothing, 422 without towers."""
        served = self.served
        if served is not None:
            return served
        if (view := self._newest_view()) is not None:
            self._check_towers(view)
        raise not_ready(self._reason)

    def template_of(self, view: ServedView) -> TowerTemplate:
        """Return what the towers of a view have in common with others, for who holds no items; ApiError 422 without."""
        self._check_towers(view)
        base = view.client_view.base
        key = (base.manifest.model, base.manifest.meta.fingerprint)
        with self._lock:
            if self._template is None or self._template[0] != key:
                self._template = key, TowerTemplate(view)
            return self._template[1]

    def _check_towers(self, view: ServedView) -> None:
        if self._is_without_towers(view):
            name = view.client_view.base.manifest.model.name
            raise ApiError(
                422, "no_towers", f'the served model "{name}" has no towers', 'train [model] name = "two_tower"'
            )

    def at(self, view: ServedView) -> ServedItems:
        """Return what requests for exactly this view are answered from. May be called by several threads.

        ApiError 503 while there is nothing, 410 where the version is too old, 422 without towers.
        """
        newest = self.require()
        if newest.towers.rows_are_elsewhere:
            self._part.check_knows_all("items with several id features")
        with self._lock:
            older = [kept for kept in self._kept if kept.towers.view.version <= view.version]
            if not older or older[-1].towers.template is not newest.towers.template:
                raise version_gone(view.version, newest.towers.view.version)
            served = older[-1]
            if served.towers.view.own_view is view.own_view:
                return served
            served = _followed(served, served.towers.template.of(view))
            self._keep(served)
            return served

    def _keep(self, served: ServedItems) -> None:
        """Keep items of a version for requests; call with the lock."""
        version = served.towers.view.version
        others = [kept for kept in self._kept if kept.towers.view.version != version]
        kept = sorted([*others, served], key=lambda kept: kept.towers.view.version)
        self._kept.clear()
        self._kept.extend(kept)

    def note(self, user: UserInputs) -> None:
        """Note who asked: recall is measured for the last of them."""
        self._users.append(user)
        self._was_asked = True

    def start(self, view: ServedView) -> None:
        """Begin to follow the views if this one has towers; call for the first view over each base."""
        if self._thread.ident is None and not self._part.hash_range.is_empty and not self._is_without_towers(view):
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
        if view is None:
            return
        if self._is_without_towers(view):
            self.served = None
            return
        self._advance(view)
        if self.served is None or self._is_time(self.served):
            self._rebuild(view)
        with self._lock:
            if self.served is not None:
                oldest = self._kept[0] if self._kept else self.served
                view.items.drop_through(oldest.towers.view.version)

    def _run(self) -> None:
        take_short_slices()
        seen: object = None
        while not self._stopping.is_set():
            view = self._newest_view()
            try:
                if view is not None and (view is not seen or self._is_stale(view)):
                    seen = view
                    self.step()
                self._check_recall()
            except PartError as error:  # rows that describe the items lie on other servers
                self._reason = f"the items cannot be read: {error}"
                self._stopping.wait(PART_SECONDS)
                seen = None
            except Exception as error:
                # what was served stays served: a defect here must not end the thread
                logger.exception("reading the items failed")
                self._reason = f"the items cannot be read: {error}"
                self._stopping.wait(1.0)
            self._stopping.wait(POLL_SECONDS)

    def _is_stale(self, view: ServedView) -> bool:
        served = self.served
        if served is None or self._is_without_towers(view):
            return False
        return served.base.version < view.version and self._is_time(served)

    def _is_time(self, served: ServedItems) -> bool:
        have_changed = served.num_changed > CHANGED * len(served.base)
        share = REBUILD_SHARE_OF_CHANGED if have_changed else REBUILD_SHARE
        return self._clock() - self._built_at >= self._built_seconds / share

    @staticmethod
    def _is_without_towers(view: ServedView) -> bool:
        return ItemLayout.of(view.schema, view.client_view.base.manifest.model) is None

    def _towers(self, view: ServedView) -> Towers:
        template, served = self.template_of(view), self.served
        if served is not None and served.towers.template is not template:
            self.served = None  # vectors of another net mean nothing to this one
            self._users.clear()
            with self._lock:
                self._kept.clear()
        return template.of(view)

    def _advance(self, view: ServedView) -> None:
        """Serve the view: encode the items of the versions since the served one."""
        towers, served = self._towers(view), self.served
        if served is not None and served.towers.view.version < view.version:
            self._serve(_followed(served, towers))

    def _rebuild(self, view: ServedView) -> None:
        """Encode all items at this view, and build their index, while later views are followed; then serve them."""
        began = self._clock()
        towers, is_first = self._towers(view), self.served is None
        between = self._may_go_on if is_first else self._follow_meanwhile
        base = ItemSet.encode(self._items(view), towers, between, self._newest_view)
        if base is None:
            return
        first = ServedItems(towers, base, towers)
        if is_first:
            warm_up()
            self._serve(first)
        if len(base) >= self._indexed_items:
            index = InvertedFile.build(base.vectors_IO, between=self._follow_meanwhile)
            if index is not None:
                index = index.tuned(self._queries(towers), MIN_CANDIDATES, between=self._follow_meanwhile)
            if index is None:
                return
            base = replace(base, index=index)
        if self.served is None or self.served.towers.template is not towers.template:
            return
        now = towers if self.served.towers.view is view else self.served.towers
        since = ItemSet.encode(now.view.items.between(base.version, now.view.version), now)
        assert since is not None
        self._serve(replace(first, base=base).followed_by(now, since))
        self._built_at = self._clock()
        self._built_seconds = self._built_at - began

    def _queries(self, towers: Towers) -> FloatArray:
        """Return vectors of the users who asked last, or of invented ones as long as nobody has."""
        if users := list(self._users):
            return np.concatenate([towers.users(user) for user in users])
        return towers.users(towers.user_inputs(sample_users(towers.view, towers.template.user_part, RECALL_USERS)))

    def _items(self, view: ServedView) -> ItemColumns:
        """Return the items at a view: those that are served, with those of a base that is newer, after a gap."""
        served, base = self.served, view.client_view.base
        if served is None:
            return view.items.at(base, view.version)
        items, of_base = served.base.columns, view.items.of(base)
        for changed in reversed(served.changed):
            items = items.merged(changed.columns)
        is_newer = base.manifest.number > served.base.version
        items = items.merged(of_base) if is_newer else of_base.merged(items)
        return items.merged(view.items.between(base.manifest.number, view.version))

    def _may_go_on(self) -> bool:
        return not self._stopping.is_set()

    def _follow_meanwhile(self) -> bool:
        """Follow a newer view, if there is one; False if the build must end."""
        view, served = self._newest_view(), self.served
        if view is not None and (served is None or served.towers.view is not view):
            self._advance(view)
        return self.served is not None and not self._stopping.is_set()

    def _serve(self, served: ServedItems) -> None:
        self.served = served
        with self._lock:
            self._keep(served)
        metrics, view = self._metrics, served.towers.view
        metrics.set("springtide_retrieve_items", float(len(served.base)))
        metrics.set("springtide_retrieve_changed_items", float(served.num_changed))
        metrics.set("springtide_retrieve_version", view.version)
        age_ms = view.client_view.meta.created_ms - served.base.created_ms
        metrics.set("springtide_retrieve_index_age_seconds", max(0, age_ms) / 1000)

    def _check_recall(self) -> None:
        """Compare the index with exact search for the users who asked last; one that finds too little reads more."""
        served, users = self.served, list(self._users)
        if served is None or not self._was_asked or self._clock() - self._checked_at < RECALL_SECONDS:
            return
        self._checked_at, self._was_asked = self._clock(), False
        share = recall(served, users, between=self._follow_meanwhile)
        self._metrics.set("springtide_retrieve_recall", share)
        if (served := self.served) is None:
            return
        index = served.base.index
        if share < LEAST_RECALL and isinstance(index, InvertedFile):
            self.served = replace(served, base=replace(served.base, index=index.scanning(2 * index.num_to_scan)))


def _followed(served: ServedItems, towers: Towers) -> ServedItems:
    """Return the same items at a later view, that of the towers."""
    since = ItemSet.encode(towers.view.items.between(served.towers.view.version, towers.view.version), towers)
    assert since is not None
    return served.followed_by(towers, since)


def recall(
    served: ServedItems, users: Sequence[UserInputs], k: int = 10, *, between: Callable[[], object] = lambda: None
) -> float:
    """Return which share of the k best items of exact search the index finds, over some users.

    An item as good as the worst of them counts as one of them (as in ann-benchmarks): which of equal items is found
    does not matter. `between` is called before each user.
    """
    nothing = np.zeros(0, np.int64)
    shares = []
    for user in users:
        between()
        exact_K, found_K = (
            served.retrieve(user, k, wanted={}, excluded=nothing, exact=is_exact)[1] for is_exact in (True, False)
        )
        shares.append((found_K >= exact_K[-1] - TIE).sum() / len(exact_K) if len(exact_K) else 1.0)
    return float(np.mean(shares))


NUM_ROWS = 16_384  # looked at of each layer
LIST_LENGTH = 4


def sample_users(view: ServedView, part: Schema, num: int) -> Features:
    """Return users with random ids of each of their fields, the same for the same view; numbers are missing.

    An index is tuned to them before anybody has asked.
    """
    draw = np.random.default_rng(0)

    def ids_of(name: str, size: int) -> np.ndarray:
        known = _known_ids(view, part.number(name), draw)
        return draw.choice(known, size) if len(known) else np.full(size, MISSING_ID)

    columns = [ids_of(name, num) for name in part.categorical]
    offsets = LIST_LENGTH * np.arange(num + 1)
    return Features(
        np.stack(columns, axis=1) if columns else np.zeros((num, 0), np.int64),
        tuple(Ragged(ids_of(name, LIST_LENGTH * num), offsets) for name in part.lists),
        np.full((num, len(part.dense)), np.nan, np.float32),
    )


def _known_ids(view: ServedView, number: int, draw: np.random.Generator) -> np.ndarray:
    found = []
    for layer in view.own_view.table_of(number).all_layers:
        rows_R = draw.integers(0, len(layer), NUM_ROWS) if len(layer) > NUM_ROWS else np.arange(len(layer))
        found.append(layer.id[rows_R][layer.feature[rows_R] == number])
    return np.concatenate(found) if found else np.zeros(0, np.int64)
