"""A base by itself: its manifest, its files against their checksums, its rows and texts against the rules of a base."""

# n rows of a chunk

import numpy as np
from springtide_client.errors import LogError
from springtide_client.format.records import version_name
from springtide_client.format.tensors import Arrays
from springtide_client.keys import SHARED_ROW_OFFSET, hash_string, mix_keys
from springtide_client.log.base import (
    ID_STRINGS,
    MANIFEST,
    OPTIMIZER,
    ROWS,
    Base,
    BaseManifest,
    crc32_of_file,
    read_base_manifest,
)
from springtide_client.log.directory import base_name
from springtide_client.rows.layers import expiry_cutoffs_of

from app.version_log.verify.inventory import REMOVE, LogInventory, has_checksum
from app.version_log.verify.report import VerifyReport, plural

CHUNK_ROWS = 1 << 18


class BaseCheck:
    """Looks at the bases of a folder one by one."""

    def __init__(self, folder: LogInventory, findings: VerifyReport) -> None:
        self._folder, self._findings = folder, findings
        self._numbers = folder.listing.bases

    def manifests(self) -> list[BaseManifest]:
        """Of all bases whose manifest can be read, oldest first."""
        manifests = []
        for number in self._numbers:
            name = f"{base_name(number)}/{MANIFEST}"
            path = self._folder.path / base_name(number)
            try:
                manifest = read_base_manifest(path)
            except FileNotFoundError:
                self._add(name, "it is missing", number, opens=False)
                continue
            except LogError as error:
                self._add(name, str(error).removeprefix(f"{path / MANIFEST} "), number, opens=False)
                continue
            if not has_checksum((path / MANIFEST).read_bytes()):
                self._add(name, "the checksum at its end is damaged", number)
            if manifest.number != number:
                self._add(name, f"it is the manifest of base {version_name(manifest.number)}", number)
                continue
            manifests.append(manifest)
        return manifests

    def check(self, manifest: BaseManifest, *, deep: bool) -> Base | None:
        """The base where it can be opened; `deep` hashes every text."""
        num_wrong = len(self._findings.errors)
        self._check_files(manifest)
        try:
            base = Base.open(self._folder.path / base_name(manifest.number))
        except LogError:
            return None  # told already: a file is missing or cut
        if len(self._findings.errors) == num_wrong:
            self._check_rows(base)
            if base.id_strings is not None:
                self._check_texts(base, base.id_strings, deep=deep)
        if len(self._findings.errors) == num_wrong:
            size = sum(file.bytes for file in manifest.files.values())
            name = version_name(manifest.number)
            self._findings.ok(
                f"base {name}: {plural(len(base), 'row')}, {plural(len(manifest.files), 'file')}, {size:,} bytes"
            )
        return base

    def _check_files(self, manifest: BaseManifest) -> None:
        folder = self._folder.path / base_name(manifest.number)
        for name, expected in manifest.files.items():
            place = f"{folder.name}/{name}"
            try:
                size = (folder / name).stat().st_size
                if size != expected.bytes:
                    what = f"it has {size:,} bytes, its manifest says {expected.bytes:,}"
                    self._add(place, what, manifest.number, min(size, expected.bytes), opens=False)
                elif crc32_of_file(folder / name) != expected.crc32:
                    self._add(place, "it does not match its checksum", manifest.number)
            except FileNotFoundError:
                self._add(place, "it is missing", manifest.number, opens=False)
        for path in sorted(folder.iterdir()):
            if path.name not in manifest.files and path.name != MANIFEST:
                self._findings.error(f"{folder.name}/{path.name}", None, "it has no owner", REMOVE)

    def _check_rows(self, base: Base) -> None:
        rows, meta, manifest = base.rows, base.manifest.meta, base.manifest
        place = f"{base.path.name}/{ROWS}"
        n, table = len(rows), manifest.table
        if rows.value.shape != (n, table.dim) or base.states.shape != (n, table.state_width):
            self._add(
                f"{base.path.name}/{OPTIMIZER}", "rows and states are not as wide as the manifest says", base.tip.number
            )
            return
        num_features = len(manifest.decode_schema().features)
        before = (-1, -1)
        for start in range(0, n, CHUNK_ROWS):
            some = rows.take(slice(start, start + CHUNK_ROWS))
            rising = (some.mixed[1:] > some.mixed[:-1]) | (
                (some.mixed[1:] == some.mixed[:-1]) & (some.feature[1:] > some.feature[:-1])
            )
            first = (int(some.mixed[0]), int(some.feature[0]))
            wrong = {
                "its key stands at the wrong place": some.mixed != mix_keys(some.feature, some.id),
                "it does not stand in the order of mixed keys": ~np.concatenate([[first > before], rising]),
                "its feature is not in the schema": some.feature % SHARED_ROW_OFFSET >= num_features,
                "a rule had forgotten it": some.last_seen < expiry_cutoffs_of(some.feature, meta.expiry_cutoffs),
            }
            for what, found in wrong.items():
                if found.any():
                    row = int(np.flatnonzero(found)[0])
                    key = f"feature {some.feature[row]}, id {some.id[row]}"
                    self._add(place, f"row {start + row:,} ({key}): {what}", base.tip.number)
                    return
            before = (int(some.mixed[-1]), int(some.feature[-1]))

    def _check_texts(self, base: Base, texts: Arrays, *, deep: bool) -> None:
        place = f"{base.path.name}/{ID_STRINGS}"
        features, ids, offsets = texts["feature"], texts["id"], texts["offsets"]
        rising = (features[1:] > features[:-1]) | ((features[1:] == features[:-1]) & (ids[1:] > ids[:-1]))
        fits = len(offsets) == len(ids) + 1 and offsets[0] == 0 and offsets[-1] == len(texts["bytes"])
        if not rising.all() or not fits or not (np.diff(offsets) >= 0).all():
            self._add(place, "the texts are not in order", base.tip.number)
            return
        for start in range(0, len(ids) if deep else 0, CHUNK_ROWS):
            chunk = offsets[start : start + CHUNK_ROWS + 1].tolist()
            content = texts["bytes"][chunk[0] : chunk[-1]].tobytes()
            for k, row_id in enumerate(ids[start : start + CHUNK_ROWS].tolist()):
                if hash_string(content[chunk[k] - chunk[0] : chunk[k + 1] - chunk[0]]) != row_id:
                    self._add(place, f"text {start + k:,} is not that of its id {row_id}", base.tip.number)
                    return

    def _add(self, file: str, what: str, number: int, offset: int | None = None, *, opens: bool = True) -> None:
        """`opens`: whether a follower sees nothing of it."""
        older = [base for base in self._numbers if base < number]
        newer = [base for base in self._numbers if base > number]
        name = base_name(number)
        if newer:
            reader = f"followers begin at base {version_name(newer[-1])} and do not look at it: remove {name}"
        elif older:
            begin = f"they begin at base {version_name(older[-1])}"
            reader = (
                f"followers that begin now take it: remove {name}, and {begin}"
                if opens
                else f"followers that begin now pass it over, {begin}: remove {name}"
            ) + "; the next merge does"
        else:
            reader = "it is the only base: restore it from a copy, or begin a new log"
        self._findings.error(file, offset, what, reader)
