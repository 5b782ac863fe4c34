"""Serves one version of a log and never another: `springtide serve --version`."""

from collections.abc import Callable
from pathlib import Path

from springtide.app.errors import UserError
from springtide.app.serving.model.id_dictionary import LiveIdDictionary
from springtide.app.serving.model.live_items import LiveItems
from springtide.app.serving.model.part import WHOLE, Part
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.model.version_index import VersionEntry
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import VersionRange
from springtide.kernels.cpu.serving.layer_search import LayerSearchCache
from springtide.kernels.cpu.serving.wide_steps import compiled_steps
from springtide_client.errors import SpringtideError
from springtide_client.follow.listeners import AppliedVersion
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View


class FixedFollower:
    """Implements ViewFollower over one version. Once it is open, retention may delete its files."""

    def __init__(
        self, log_path: Path, number: int, *, on_swap: Callable[[VersionEntry], None], part: Part = WHOLE
    ) -> None:
        """Nothing is read before the first `poll`; `on_swap(version)` is called when the version is servable."""
        self._directory = LogDirectory(log_path)
        self._number = number
        self._on_swap = on_swap
        self._part = part
        self._id_strings = LiveIdDictionary(part.hash_range)
        self._items = LiveItems(part.hash_range)
        self._view: ServedView | None = None
        self._error: Exception | None = None

    @property
    def view(self) -> ServedView | None:
        return self._view

    @property
    def error(self) -> Exception | None:
        return self._error

    @property
    def has_base(self) -> bool:
        return self._directory.newest_base() is not None

    def poll(self) -> bool:
        if self._view is not None:
            return False
        try:
            view = self._open()
        except (SpringtideError, UserError, OSError) as error:
            self._error = error
            return False
        self._error = None
        self._view = ServedView(view, self._id_strings, self._items, self._part)
        self._on_swap(VersionEntry.of(AppliedVersion(view.tip.number, view.parent, view.tip.checksum, view.meta)))
        return False

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _open(self) -> View:
        index = LogIndex(self._directory)
        base = index.base_before(self._number)
        view = View.open(
            base.path,
            search_factory=LayerSearchCache(),
            wide_steps=compiled_steps(),
            hash_range=self._part.hash_range,
        )
        for record in VersionRange(index, base.tip.number, self._number).records():
            self._id_strings.add(record)
            self._items.add(record)
            view = view.apply(record).merged()
        view.prepare()
        return view
