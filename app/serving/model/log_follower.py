"""The seam to the client: its follower over a log directory, and its views as the routes see them."""

# K keys, D dimension
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from springtide_client.features import Features
from springtide_client.follow.follower import AppliedVersion, Follower
from springtide_client.format.records import Record
from springtide_client.keys import INT64_MIN
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from springtide_client.rows.layers import RowLayer
from springtide_client.schema import Schema

from app.serving.model.id_dictionary import TextTap
from app.serving.model.version_index import VersionEntry
from app.serving.model.view import IdArray, RowArray, StatusArray
from kernels.cpu.serving.layer_search import LayerSearch, LayerSearches

# of a version's meta, what only the next trainer reads
INTERNAL_META = ("trainer", "record_ms", "created_ms")


class ServedView:
    """A client's view with the texts of its ids; see ModelView for what each answer is."""

    def __init__(self, view: View, texts: TextTap) -> None:
        self.inner = view
        self._texts = texts

    @property
    def version(self) -> int:
        return self.inner.version

    @property
    def complete_until_ms(self) -> int:
        return self.inner.meta.complete_until_ms

    @property
    def schema(self) -> Schema:
        return self.inner.schema

    @property
    def dim(self) -> int:
        return self.inner.dim

    @cached_property
    def feature_numbers(self) -> dict[str, int]:
        return {feature: self.schema.number(feature) for feature in self.schema.features}

    def lookup(self, number: int, ids_K: IdArray) -> tuple[RowArray, StatusArray]:
        return self.inner.lookup(feature_column(number), ids_K)

    def lookup_packed(self, number: int, ids_K: IdArray) -> StatusArray:
        search = self.inner.search
        assert isinstance(search, LayerSearch)
        return search.packed(feature_column(number), ids_K)

    def row_info(self, number: int, row_id: int) -> tuple[int, int]:
        info = self.inner.row_info(number, row_id)
        return info["count"], info["last_seen_ms"]

    def predict(self, features: Features) -> tuple[npt.NDArray[np.float32], StatusArray]:
        return self.inner.predict_with_status(features)

    def has_id_strings(self, number: int) -> bool:
        return self._texts.has_texts(self.inner.base, number)

    def display_ids(self, number: int, ids_K: IdArray) -> list[int | str]:
        found = ((row_id, self._texts.find(self.inner.base, number, row_id)) for row_id in ids_K.tolist())
        return [row_id if text is None else text for row_id, text in found]

    @property
    def layers(self) -> Sequence[RowLayer]:
        return self.inner.all_layers

    def expiry_cutoff_ms(self, number: int) -> int:
        return self.inner.meta.expiry_cutoffs.get(str(number), INT64_MIN)


@lru_cache(maxsize=1_024)
def feature_column(number: int) -> npt.NDArray[np.uint16]:
    """One feature that stands for all ids."""
    return np.array([number], np.uint16)


class LogFollower:
    """A follower of one directory; `on_version` hears every version, `on_swap` the one that became servable."""

    def __init__(
        self,
        log_path: Path,
        *,
        cache_bytes: int,
        disk_bytes: int,
        cache_path: Path | None,
        on_version: Callable[[VersionEntry, int, int], None],
        on_swap: Callable[[VersionEntry], None],
        on_record: Callable[[Record], None] | None = None,
    ) -> None:
        self._texts = TextTap(LogDirectory(log_path), on_record)
        self._follower = Follower(
            self._texts,
            cache_bytes=cache_bytes,
            cache_dir=cache_path,
            disk_bytes=disk_bytes,
            make_search=LayerSearches(),
        )
        self._on_version = on_version
        self._on_swap = on_swap
        self._wrapped: ServedView | None = None
        self._base_number = -1
        self._follower.add_listener(self._heard)
        self._follower.on_swap(self._swapped)

    @property
    def view(self) -> ServedView | None:
        view, wrapped = self._follower.view, self._wrapped
        if view is None:
            return None
        if wrapped is None or wrapped.inner is not view:
            wrapped = self._wrapped = ServedView(view, self._texts)
        return wrapped

    @property
    def has_base(self) -> bool:
        return self._texts.has_base

    @property
    def error(self) -> Exception | None:
        return self._follower.error

    def poll(self) -> None:
        self._follower.poll()
        view = self._follower.view
        if view is not None and view.base.manifest.number != self._base_number:
            self._base_number = view.base.manifest.number
            self._texts.let_go(self._base_number)

    def close(self) -> None:
        self._follower.close()

    def _heard(self, view: View, applied: AppliedVersion, servable_ms: int) -> None:
        self._on_version(version_entry(applied), servable_ms, applied.num_bytes)

    def _swapped(self, view: View) -> None:
        # a base that nothing follows yet is a version that no record told of
        self._on_swap(version_entry(AppliedVersion(view.tip.number, view.parent, view.tip.checksum, view.meta)))


def version_entry(applied: AppliedVersion) -> VersionEntry:
    """What the version index keeps of a version."""
    facts = msgspec.to_builtins(applied.meta)
    created_ms, record_ms = facts["created_ms"], facts["record_ms"]
    for name in INTERNAL_META:
        del facts[name]
    return VersionEntry(applied.number, applied.parent, applied.checksum, created_ms, record_ms, facts)
