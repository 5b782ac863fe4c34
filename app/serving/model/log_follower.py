"""Follows a log directory with the client's Follower and wraps its views for serving."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from springtide.app.serving.model.id_dictionary import LiveIdDictionary
from springtide.app.serving.model.live_items import LiveItems
from springtide.app.serving.model.part import WHOLE, Part
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.model.version_index import VersionEntry
from springtide.kernels.cpu.serving.layer_search import LayerSearchCache
from springtide.kernels.cpu.serving.wide_steps import compiled_steps
from springtide_client.errors import LogError
from springtide_client.follow.follower import Follower
from springtide_client.follow.listeners import AppliedVersion
from springtide_client.follow.log_source import RecordCursor
from springtide_client.format.records import Record, Tip
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View


class LogFollower:
    """Implements ViewFollower over one log directory."""

    def __init__(
        self,
        log_path: Path,
        *,
        cache_bytes: int,
        disk_bytes: int,
        cache_path: Path | None,
        on_version: Callable[[VersionEntry, int, int], None],
        on_swap: Callable[[VersionEntry], None],
        on_record: Callable[[Record], None],
        part: Part = WHOLE,
    ) -> None:
        """Nothing is read before the first `poll`.

        `on_version(version, servable at ms, bytes of its record)` is called for every version, `on_swap(version)` for
        one that became servable, `on_record(record)` for each record as it is read. Views hold the rows of `part`.
        """
        self._part = part
        self._id_strings = LiveIdDictionary(part.hash_range)
        self._items = LiveItems(part.hash_range)
        observers = [on_record, self._id_strings.add]
        if not part.hash_range.is_empty:  # retrieval compares rows
            observers.append(self._items.add)
        self._source = ObservedSource(LogDirectory(log_path), observers, part)
        self._follower = Follower(
            self._source,
            cache_bytes=cache_bytes,
            cache_dir=cache_path,
            disk_bytes=disk_bytes,
            search_factory=LayerSearchCache(),
            wide_steps=compiled_steps(),
            hash_range=part.hash_range,
        )
        self._on_version = on_version
        self._on_swap = on_swap
        self._wrapped: ServedView | None = None
        self._base_number = -1
        self._follower.add_listener(self._version_applied)
        self._follower.on_swap(self._swapped)

    @property
    def view(self) -> ServedView | None:
        view, wrapped = self._follower.view, self._wrapped
        if view is None:
            return None
        if wrapped is None or wrapped.own_view is not view:
            wrapped = self._wrapped = ServedView(view, self._id_strings, self._items, self._part)
        return wrapped

    @property
    def has_base(self) -> bool:
        return self._source.has_base

    @property
    def error(self) -> Exception | None:
        return self._follower.error

    def poll(self) -> bool:
        self._follower.poll()
        view = self._follower.view
        if view is not None and view.base.manifest.number != self._base_number:
            # items of the base before stay until those who read it have gone on to this one
            self._items.drop_through(self._base_number)
            self._base_number = view.base.manifest.number
            self._id_strings.drop_through(self._base_number)
        return self._follower.is_busy

    def close(self) -> None:
        self._follower.close()

    def _version_applied(self, view: View, applied: AppliedVersion, servable_ms: int) -> None:
        self._on_version(VersionEntry.of(applied), servable_ms, applied.num_bytes)

    def _swapped(self, view: View) -> None:
        # a base without later records is a version that no record announced
        self._on_swap(VersionEntry.of(AppliedVersion(view.tip.number, view.parent, view.tip.checksum, view.meta)))


class ObservedSource:
    """A log's folder that shows each record to observers on its way to the follower of a part."""

    def __init__(self, source: LogDirectory, observers: Sequence[Callable[[Record], None]], part: Part = WHOLE) -> None:
        self._source = source
        self._observers, self._part = observers, part
        self.has_base = False  # at the last look

    def newest_base(self) -> Path | None:
        found = self._source.newest_base()
        self.has_base = found is not None
        return found

    def bases_before(self, than: Path) -> list[Path]:
        return self._source.bases_before(than)

    def local_base(self) -> Path | None:
        return self._source.local_base()

    def follow(self, after: Tip | None) -> RecordCursor:
        base, source = self._source.newest_base(), self._source
        if base is not None and not self._part.holds_all:
            with suppress(FileNotFoundError, LogError):  # deleted or damaged meanwhile: all records are read
                source = LogDirectory(source.path, self._part.shard_choice(read_base_manifest(base)))
        return _ObservedCursor(source.follow(after), self._observers)


class _ObservedCursor:
    def __init__(self, inner: RecordCursor, observers: Sequence[Callable[[Record], None]]) -> None:
        self._inner = inner
        self._observers = observers

    def read(self) -> Sequence[Record]:
        records = self._inner.read()
        for record in records:
            for observe in self._observers:
                observe(record)
        return records

    def close(self) -> None:
        self._inner.close()
