"""Replay versions over a base in memory: what a trainer resumes from, all but the rows, and then rows too."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.items import items_of
from springtide.app.version_log.read.exact_state import find_state, fold_net, is_exact_state, is_net
from springtide.app.version_log.read.id_dictionary import id_strings_of, merge_id_strings, take_strings
from springtide.app.version_log.tables import LogTable, tables_of
from springtide_client.errors import LogError
from springtide_client.format.records import NO_STATE, CommandEntry, Head, Record, VersionMeta, version_name
from springtide_client.format.tensors import Array, Arrays, map_tensors
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.layers import flatten_layers, merge_layers, push_layer
from springtide_client.rows.row_block import RowBlock

MAX_COMMANDS = 10_000  # that a base remembers, beside erasures; the files of older ones are long deleted
SCORES = "state.scores."
PENDING_ITEMS = 32  # versions whose items are merged at once
PENDING_BYTES = 256 << 20  # of records whose rows are merged at once: merging few at a time copies a row more often


@dataclass
class Resume:
    """Apply `base`, then each of `records()`. Once those are read, the other fields describe the end of the log."""

    base: Base
    head: Head  # the end of the log
    directory: LogDirectory
    read_already: deque[Record] = field(default_factory=deque)  # the first of the records; they are taken out
    meta: VersionMeta = field(init=False)
    executed_commands: dict[str, int] = field(init=False)  # command id -> the version that carries it
    erasure_entries: list[CommandEntry] = field(init=False)  # the `forget` commands among them
    _heads: dict[int, Head] = field(init=False)  # the versions whose exact state is beside the log

    def __post_init__(self) -> None:
        self.meta, self._heads = self.base.manifest.meta, {}
        self.executed_commands, self.erasure_entries = {}, []
        self._add_commands(self.base.head.number, self.meta)

    @staticmethod
    def of(directory: LogDirectory, head: Head | None, read_already: deque[Record] | None = None) -> "Resume | None":
        """Open the newest base for a log that ends at `head`; None in a new log. LogError if no base opens.

        `read_already`: versions up to `head` in order, which need not be read and verified again.
        """
        if head is None:
            return None
        base = directory.open_base()
        if base is None or base.head.number > head.number:
            raise LogError(f"the log {directory.path} has no base at or before its end {head}")
        return Resume(base, head, directory, deque() if read_already is None else read_already)

    def records(self) -> Iterator[Record]:
        """Yield each version after the base, up to the end of the log; LogError if one of them cannot be read."""
        head = self.base.head
        for record in self._versions(head):
            failpoint("while the log is replayed")
            self._add_commands(record.number, record.meta)
            self.meta, head = record.meta, record.head
            if record.meta.exact_state == record.number:
                self._heads[record.number] = record.head
            yield record
            if head.number >= self.head.number:
                break
        if head != self.head:
            raise LogError(f"the log {self.directory.path} cannot be read up to {self.head}: it ends at {head}")

    def _versions(self, head: Head) -> Iterator[Record]:
        while self.read_already:
            record = self.read_already.popleft()
            if record.parent == head.checksum:  # not one that the newest base covers
                yield record
                head = record.head
        yield from self.directory.records(head)

    def read_state(self, version: int) -> Arrays:
        """Return the exact state of the net at a version whose record was yielded; LogError if it is gone."""
        file = find_state(self.directory.path, self._heads[version])
        if file is None:
            raise LogError(f"the exact state of version {version_name(version)} is gone from {self.directory.path}")
        return map_tensors(file)

    def _add_commands(self, version: int, meta: VersionMeta) -> None:
        for entry in meta.executed_commands:
            self.executed_commands[entry.id] = version
            if entry.kind == "forget":
                self.erasure_entries.append(entry)


class ModelReplayState:
    """Dense net, optimizer, scores, admission sketch, commands and meta after versions replayed over a base."""

    def __init__(self, base: Base, *, window_samples: int) -> None:
        self.base = base
        self.head: Head = base.head
        self._meta = base.manifest.meta
        # those that the base remembers, and all that were executed since
        self.commands: list[CommandEntry] = list(self._meta.executed_commands)
        self.sketch: Array | None = base.sketch  # uint8 (blocks, 64); None if nothing was ever counted
        self._state_head: Head | None = None  # the newest version replayed whose exact state is beside the log
        arrays = {**base.dense, **base.trainer_state}
        self._arrays = fold_net({}, arrays, is_whole=True)
        schema = base.manifest.decode_schema()
        self._scores = ProgressiveScores(schema.labels, window_samples, links=schema.label_links)
        self._scores.restore(_scores_of(arrays))

    def apply(self, record: Record) -> None:
        """Replay the next version. Arrays that are kept are copied, so the record may be freed."""
        tensors = record.tensors()
        net = {name: np.array(array) for name, array in tensors.items() if is_net(name)}
        self._arrays = fold_net(self._arrays, net, is_whole=bool(record.meta.restores))
        if record.meta.restores:
            self._scores.restore(_scores_of(tensors))
        else:
            self._scores.apply(_scores_of(tensors))
        self.apply_sketch_and_meta(record)

    def apply_sketch_and_meta(self, record: Record) -> None:
        """Replay only the next version's admission sketch, commands and meta."""
        self._apply_sketch(record.tensors(), record.meta.sketch_blocks)
        self._meta = record.meta
        if record.meta.exact_state == record.number:
            self._state_head = record.head
        self.commands += record.meta.executed_commands
        self.head = record.head

    def copy(self) -> "ModelReplayState":
        """Return an independent copy. Arrays are shared, because they are replaced and never written into."""
        clone = ModelReplayState.__new__(ModelReplayState)
        clone.__dict__.update(self.__dict__)
        clone._arrays, clone.commands = dict(self._arrays), list(self.commands)
        clone._scores = deepcopy(self._scores)
        clone.sketch = None if self.sketch is None else np.array(self.sketch)
        return clone

    @property
    def meta(self) -> VersionMeta:
        """The last version's meta with the commands of all versions, so that none is executed twice."""
        return self.meta_since(())

    def meta_since(self, known: Collection[str]) -> VersionMeta:
        """Return the same with every erasure whose id is not in `known`, the commands of the oldest restorable version.

        A rollback to that version must not bring back what they erased.
        """
        return msgspec.structs.replace(self._meta, executed_commands=remembered_commands(self.commands, known))

    @property
    def arrays(self) -> Arrays:
        """`dense.*` and `state.*` as a base holds them; without the exact state of the net if it is in a file."""
        arrays = self._arrays
        if self.state_head is not None:
            arrays = {name: array for name, array in arrays.items() if not is_exact_state(name)}
        return arrays | {f"{SCORES}{name}": array for name, array in self._scores.state().items()}

    @property
    def state_head(self) -> Head | None:
        """The version whose file holds the exact state of the net at the last version; None if `arrays` does."""
        version = self._meta.exact_state
        is_beside_log = version > self.base.head.number and self._state_head is not None
        return self._state_head if is_beside_log else None

    def state_file(self, log_path: Path) -> Path | None:
        """Return the file with the exact state of the net; None if `arrays` has it. LogError if it is gone."""
        if self.state_head is None:
            return None
        if (file := find_state(log_path, self.state_head)) is None:
            raise LogError(f"the exact state of version {self.state_head} is gone from {log_path}")
        return file

    def is_exact(self, log_path: Path) -> bool:
        """Return True if the exact state of the net is there at the last version."""
        if self._meta.exact_state == NO_STATE:
            return False
        return self.state_head is None or find_state(log_path, self.state_head) is not None

    def _apply_sketch(self, tensors: Arrays, num_blocks: int) -> None:
        if num_blocks != self._meta.sketch_blocks:
            self.sketch = None  # the trainer started a new sketch of another size
        if not len(tensors.get("sketch.block", ())):
            return
        if self.sketch is None:
            self.sketch = np.zeros((num_blocks, tensors["sketch.bytes"].shape[1]), np.uint8)
        elif not self.sketch.flags.writeable:
            self.sketch = np.array(self.sketch)  # the base's own
        self.sketch[tensors["sketch.block"]] = tensors["sketch.bytes"]


class ReplayState(ModelReplayState):
    """Everything after versions replayed over a base: also the changed rows and the added id strings."""

    def __init__(self, base: Base, *, window_samples: int) -> None:
        super().__init__(base, window_samples=window_samples)
        self.id_strings: list[Arrays] = []
        self._items: list[Arrays] = [] if base.items is None else [base.items]
        self.num_changes = 0  # records that hold more than meta
        self.num_bytes = 0  # of the records replayed
        self.num_ranks = base.manifest.num_ranges  # that wrote the newest version
        self.tables = tables_of(base.manifest)
        self._rows = {table.name: _TableRows(table) for table in self.tables}
        self._pending_bytes = 0

    def apply(self, record: Record) -> None:
        """Replay the next version. The rows of up to PENDING_BYTES of records stay where the records are."""
        super().apply(record)
        tensors = record.tensors()
        self.num_changes += any(array.nbytes for array in tensors.values()) or bool(record.meta.restores)
        for rows in self._rows.values():
            rows.add(tensors)
        self._pending_bytes += record.num_bytes
        if self._pending_bytes >= PENDING_BYTES:
            self._merge_pending()
        if (strings := id_strings_of(tensors)) is not None:
            self.id_strings.append({name: np.array(array) for name, array in strings.items()})
        if (items := items_of(tensors)) is not None:
            self._items.append({name: np.array(array) for name, array in items.items()})
            if len(self._items) > PENDING_ITEMS:
                self._items[1:] = [newest_items(self._items[1:])]
        self.num_bytes += record.num_bytes
        self.num_ranks = 1 + len(record.shard_entries)

    @property
    def is_idle(self) -> bool:
        """True if a base of this version would hold what the base before it holds: nothing but heartbeats came."""
        was, now = self.base.manifest.meta, self._meta
        is_same = was.expiry_cutoffs == now.expiry_cutoffs and was.sketch_blocks == now.sketch_blocks
        return is_same and not self.num_changes

    def changed_rows(self, table: LogTable) -> RowBlock:
        """Return a table's changed rows with their optimizer states, and tombstones of deleted ones, as one layer."""
        self._merge_pending()
        return self._rows[table.name].merged()

    def live_items(self) -> Arrays | None:
        """Return the newest features of all items that have a row; None if there are none."""
        if not self._items:
            return None
        items = newest_items(self._items)
        feature, id, cutoffs = items["feature"], items["id"], self._meta.expiry_cutoffs
        alive_n = np.zeros(len(id), np.bool_)
        for table in self.tables:
            for layer in (table.base_rows(self.base), self.changed_rows(table)):  # the newer one decides
                rows_n = layer.find(feature, id)
                found_n = rows_n >= 0
                alive_n[found_n] = layer.live_at(rows_n[found_n], cutoffs)
        return take_strings(items, np.flatnonzero(alive_n)) if alive_n.any() else None

    def _merge_pending(self) -> None:
        for rows in self._rows.values():
            rows.merge_pending()
        self._pending_bytes = 0


class _TableRows:
    """The changed rows of one table."""

    def __init__(self, table: LogTable) -> None:
        self._table = table
        self._layers: tuple[RowBlock, ...] = ()
        self._pending: list[RowBlock] = []  # rows of the newest records, which stay in memory until they are merged

    def add(self, tensors: Arrays) -> None:
        layer = self._table.record_layer(tensors, with_states=True)
        if len(layer):
            self._pending.append(layer)

    def merged(self) -> RowBlock:
        merged = flatten_layers(self._layers, self._table.spec.dim, self._table.spec.state_width)
        self._layers = (merged,)
        return merged

    def merge_pending(self) -> None:
        if self._pending:
            self._layers = push_layer(self._layers, merge_layers(*self._pending))
            self._pending = []


def newest_items(oldest_first: Sequence[Arrays]) -> Arrays:
    """Return each item as the newest of the parts has it; at least one part has an item."""
    merged = merge_id_strings(reversed(oldest_first))
    assert merged is not None
    return merged


def remembered_commands(commands: Sequence[CommandEntry], known: Collection[str]) -> list[CommandEntry]:
    """Return the newest MAX_COMMANDS, and of the older ones the erasures that are not in `known`."""
    older, newest = commands[:-MAX_COMMANDS], commands[-MAX_COMMANDS:]
    erasures = [entry for entry in older if entry.kind == "forget" and not entry.is_refused and entry.id not in known]
    return [*erasures, *newest]


def _scores_of(arrays: Arrays) -> Arrays:
    return {name.removeprefix(SCORES): array for name, array in arrays.items() if name.startswith(SCORES)}
