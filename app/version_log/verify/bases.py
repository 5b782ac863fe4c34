"""Check each base by itself: its manifest, its files' checksums, and the order and validity of its rows and strings."""

# n rows of a chunk
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from springtide.app.errors import UserError
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.tables import LogTable, tables_of
from springtide.app.version_log.verify.inventory import REMOVE, LogInventory
from springtide.app.version_log.verify.replay import RowPlaces
from springtide.app.version_log.verify.report import VerifyReport, plural
from springtide_client.errors import LogError
from springtide_client.format.checksums import crc32_of_file, has_checksum
from springtide_client.format.records import version_name
from springtide_client.format.tensors import Arrays
from springtide_client.keys import SHARED_ROW_OFFSET, hash_keys, hash_string
from springtide_client.log.base import (
    EXPORTS,
    ID_STRINGS,
    MANIFEST,
    ONNX,
    Base,
    BaseManifest,
    read_base_manifest,
)
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import LogManifest, base_name
from springtide_client.rows.row_block import expiry_cutoffs_of

CHUNK_ROWS = 1 << 18


@dataclass(frozen=True)
class BaseProblem:
    """One thing that is wrong with a base."""

    number: int  # of the base
    file: str  # in the log's folder
    what: str
    offset: int | None = None
    opens: bool = True  # the base opens all the same, so followers do not notice

    @property
    def file_name(self) -> str:
        """The name of the file in the base's folder."""
        return self.file.rpartition("/")[2]

    @property
    def is_of_export(self) -> bool:
        """True if only an exported form of the net is wrong, which holds no row and can be exported again."""
        return self.file_name in EXPORTS


class BaseAdvice:
    """Advice about the problems of a log's bases, once all bases were checked."""

    def __init__(self, directory: LogDirectory, numbers: Sequence[int], problems: Sequence[BaseProblem]) -> None:
        """`numbers`: of all bases of the log, oldest first."""
        self._directory, self._numbers = directory, numbers
        wrong = {problem.number for problem in problems}
        damaged = {problem.number for problem in problems if not problem.is_of_export}
        self._sound = [version for version in numbers if version not in wrong]
        self._with_rows = [version for version in numbers if version not in damaged]

    @property
    def is_all_lost(self) -> bool:
        """True if no base is left whose rows, parameters and states are sound."""
        return not self._with_rows

    def of(self, problem: BaseProblem) -> str:
        """Return what readers of the log do about a problem, and what to do."""
        return self._of_export(problem) if problem.is_of_export else self._of_contents(problem)

    def _of_export(self, problem: BaseProblem) -> str:
        keep = f"it holds no row, so keep {base_name(problem.number)}"
        if self._sound and self._sound[-1] == self._numbers[-1]:
            return f"{keep}: followers start at base {version_name(self._sound[-1])}"
        if problem.file_name == ONNX:
            return f"{keep}: the next base gets a new one"
        start = self._start_before(problem.number, self._sound)
        if start is None:
            return f"{keep}: restart the trainer, which replaces it; until then new followers may not start"
        return f"{keep}: restart the trainer, which replaces it; base {version_name(start)} is sound"

    def _of_contents(self, problem: BaseProblem) -> str:
        version, name = problem.number, base_name(problem.number)
        newer = [base for base in self._sound if base > version]
        start = self._start_before(version, self._with_rows)
        if newer:
            do = f"remove {name}"
            if start is None:
                do = f"restore it from a copy, or remove {name} with what is before base {version_name(newer[0])}"
            if newer[-1] == self._numbers[-1]:
                return f"followers start at base {version_name(newer[-1])} and do not read it: {do}"
            return f"base {version_name(newer[-1])} after it is sound: {do}"
        if start is not None:
            who = "they start" if start in self._sound else "a trainer starts"
            at = f"{who} at base {version_name(start)}"
            if version != self._numbers[-1]:
                return f"the log goes on from base {version_name(start)}: remove {name}"
            does = f"new followers use it: remove {name}, and {at}"
            if not problem.opens:
                does = f"new followers skip it, {at}: remove {name}"
            return f"{does}; the next compaction does so"
        if self._numbers == [version]:
            return "it is the only base: keep it until it is restored from a copy, or start a new log"
        if self._with_rows:
            others = " or ".join(version_name(base) for base in self._with_rows)
            return f"keep {name}, for the log does not lead from base {others} to it: restore it from a copy"
        return f"no base is sound: keep {name} until one is restored from a copy, or start a new log"

    def _start_before(self, version: int, bases: Sequence[int]) -> int | None:
        """Return the newest of some bases before a base from which the log can be read up to that base."""
        return next((base for base in reversed(bases) if base < version and self._leads(base, version)), None)

    def _leads(self, older: int, newer: int) -> bool:
        index = self._index
        if index is None or not index.runs.are_connected(older, newer):
            return False
        try:
            for entry in index.entries_between(older, newer):
                entry.read()
        except LogError:
            return False
        return True

    @cached_property
    def _index(self) -> LogIndex | None:
        try:
            return LogIndex(self._directory)
        except (LogError, UserError):
            return None


def wrong_tables(manifest: BaseManifest) -> str:
    """Return why the tables that a base names cannot be right; empty if they can."""
    known = manifest.decode_schema().row_names()
    for name, spec in manifest.tables.items():
        for feature in spec.features:
            if feature not in known:
                return f"the table {name} holds feature {feature}, which is not in the schema"
        for file in (*manifest.rows_files(name), *(manifest.optimizer_files(name) if spec.state_width else [])):
            if file not in manifest.files:
                return f"the table {name} has no file {file}"
    try:
        tables_of(manifest)
    except ValueError as error:
        return str(error)
    return ""


class BaseCheck:
    """Checks the bases of a log one by one."""

    def __init__(self, inventory: LogInventory, manifest: LogManifest | None, report: VerifyReport) -> None:
        self._inventory, self._report = inventory, report
        self._problems: list[BaseProblem] = []
        self._numbers = inventory.listing.valid_bases(manifest)
        for version in set(inventory.listing.bases) - set(self._numbers):
            what = "a replaced trainer meant to begin with it: readers ignore it, the next trainer deletes it"
            report.note(what, base_name(version))

    def manifests(self) -> list[BaseManifest]:
        """Return the manifests that can be read, oldest first."""
        manifests = []
        for version in self._numbers:
            name = f"{base_name(version)}/{MANIFEST}"
            path = self._inventory.path / base_name(version)
            try:
                manifest = read_base_manifest(path)
            except FileNotFoundError:
                self._add(name, "it is missing", version, opens=False)
                continue
            except LogError as error:
                self._add(name, str(error).removeprefix(f"{path / MANIFEST} "), version, opens=False)
                continue
            if not has_checksum((path / MANIFEST).read_bytes()):
                self._add(name, "the checksum at its end is damaged", version)
            if manifest.number != version:
                self._add(name, f"it is the manifest of base {version_name(manifest.number)}", version)
                continue
            if wrong := wrong_tables(manifest):
                self._add(name, wrong, version)
                continue
            manifests.append(manifest)
        return manifests

    def check(self, manifest: BaseManifest, *, deep: bool) -> Base | None:
        """Check one base; return it, or None if it cannot be opened. `deep`: also hash every id string."""
        num_wrong, num_broken = self._num_wrong(), self._num_wrong(exports=False)
        self._check_files(manifest)
        try:
            base = Base.open(self._inventory.path / base_name(manifest.number))
        except LogError:
            return None  # a problem already: a file is missing or truncated
        if self._num_wrong(exports=False) == num_broken:
            for table in tables_of(manifest):
                try:
                    self._check_rows(base, table)
                except FileNotFoundError:  # if the compactor has deleted it, the whole pass is repeated
                    self._add(base.path.name, "a file of it went away while it was checked", base.head.number)
                    return None
            if base.id_strings is not None:
                self._check_id_strings(base, base.id_strings, deep=deep)
        if self._num_wrong() == num_wrong:
            name = version_name(manifest.number)
            num_rows = sum(len(table.base_rows(base)) for table in tables_of(manifest))
            files = f"{plural(len(manifest.files), 'file')}, {manifest.num_bytes:,} bytes"
            self._report.ok(f"base {name}: {plural(num_rows, 'row')}, {files}")
        return base

    def _check_files(self, manifest: BaseManifest) -> None:
        folder = self._inventory.path / base_name(manifest.number)
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
                self._report.error(f"{folder.name}/{path.name}", None, "Springtide makes no file of this name", REMOVE)

    def _check_rows(self, base: Base, table: LogTable) -> None:
        rows, meta, manifest = table.base_layer(base), base.manifest.meta, base.manifest
        places = RowPlaces(base, table)
        n, spec, states = len(rows), table.spec, rows.state
        if rows.value.shape != (n, spec.dim) or states is None or states.shape != (n, spec.state_width):
            what = "rows and optimizer states do not have the width in the manifest"
            file = places.name(0, of_state=table.has_optimizer_file)
            self._add(f"{base.path.name}/{file}", what, base.head.number)
            return
        if (misplaced := places.misplaced()) is not None:
            self._add(f"{base.path.name}/{misplaced}", "it has rows of another range of keys", base.head.number)
            return
        numbers = list(manifest.decode_schema().row_names())
        before = (-1, -1)
        for start in range(0, n, CHUNK_ROWS):
            chunk = rows.take(slice(start, start + CHUNK_ROWS))
            rising = (chunk.key_hash[1:] > chunk.key_hash[:-1]) | (
                (chunk.key_hash[1:] == chunk.key_hash[:-1]) & (chunk.feature[1:] > chunk.feature[:-1])
            )
            first = (int(chunk.key_hash[0]), int(chunk.feature[0]))
            wrong = {
                "its key hash is not the hash of its key": chunk.key_hash != hash_keys(chunk.feature, chunk.id),
                "it is not in the order of key hashes": ~np.concatenate([[first > before], rising]),
                "its feature is not in the schema": ~np.isin(chunk.feature % SHARED_ROW_OFFSET, numbers),
                "its feature has its rows in another table": ~table.holds(chunk.feature),
                "it had expired": chunk.last_seen < expiry_cutoffs_of(chunk.feature, meta.expiry_cutoffs),
            }
            for what, found in wrong.items():
                if found.any():
                    row = int(np.flatnonzero(found)[0])
                    key = f"feature {chunk.feature[row]}, id {chunk.id[row]}"
                    place = f"{base.path.name}/{places.name(start + row)}"
                    self._add(place, f"row {places.in_file(start + row):,} ({key}): {what}", base.head.number)
                    return
            before = (int(chunk.key_hash[-1]), int(chunk.feature[-1]))

    def _check_id_strings(self, base: Base, strings: Arrays, *, deep: bool) -> None:
        place = f"{base.path.name}/{ID_STRINGS}"
        features, ids, offsets = strings["feature"], strings["id"], strings["offsets"]
        rising = (features[1:] > features[:-1]) | ((features[1:] == features[:-1]) & (ids[1:] > ids[:-1]))
        fits = len(offsets) == len(ids) + 1 and offsets[0] == 0 and offsets[-1] == len(strings["bytes"])
        if not rising.all() or not fits or not (np.diff(offsets) >= 0).all():
            self._add(place, "the id strings are not in order", base.head.number)
            return
        for start in range(0, len(ids) if deep else 0, CHUNK_ROWS):
            chunk = offsets[start : start + CHUNK_ROWS + 1].tolist()
            content = strings["bytes"][chunk[0] : chunk[-1]].tobytes()
            for k, row_id in enumerate(ids[start : start + CHUNK_ROWS].tolist()):
                if hash_string(content[chunk[k] - chunk[0] : chunk[k + 1] - chunk[0]]) != row_id:
                    self._add(place, f"string {start + k:,} does not hash to its id {row_id}", base.head.number)
                    return

    def _add(self, file: str, what: str, version: int, offset: int | None = None, *, opens: bool = True) -> None:
        """Remember a problem of a base: what to do about it depends on the other bases."""
        self._problems.append(BaseProblem(version, file, what, offset, opens))

    def _num_wrong(self, *, exports: bool = True) -> int:
        return len(self._report.errors) + sum(exports or not problem.is_of_export for problem in self._problems)

    def has_sound_rows(self, base: Base) -> bool:
        """Return True if nothing is wrong with a base that was checked, or only an exported form of its net."""
        return not any(problem.number == base.head.number and not problem.is_of_export for problem in self._problems)

    def report_problems(self, directory: LogDirectory, manifests: Sequence[BaseManifest]) -> None:
        """Report the problems of all bases, which were checked, and what to do about each."""
        advice = BaseAdvice(directory, self._numbers, self._problems)
        for problem in self._problems:
            self._report.error(problem.file, problem.offset, problem.what, advice.of(problem))
        for manifest in manifests if self._problems and advice.is_all_lost else ():
            name, files = base_name(manifest.number), {problem.file for problem in self._problems}
            if whole := [file for file in manifest.files if f"{name}/{file}" not in files]:
                self._report.note(f"what its checksums call whole: {', '.join(whole)}", name)
