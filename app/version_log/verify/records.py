"""Every record that counts, and those before the bases: checksums, parents, numbers, seals, and what they say."""

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from springtide_client.errors import CorruptRecordError, LogError
from springtide_client.format.records import HEADER, Record, RecordHeader, Tip, parse_header, version_name
from springtide_client.log.base import BaseManifest
from springtide_client.log.directory import LogManifest, segment_name

from app.version_log.verify.inventory import LogInventory
from app.version_log.verify.report import VerifyReport, plural
from app.version_log.verify.semantics import SemanticCheck

PIECE_BYTES = 1 << 20


@dataclass
class EpochCoverage:
    """What was covered of one epoch."""

    num_files: int = 0
    num_versions: int = 0
    num_bytes: int = 0
    first: int = 0
    last: int = 0


@dataclass
class RecordCheck:
    """Goes through the segments in order. `bases` are those whose manifests can be read, oldest first."""

    folder: LogInventory
    manifest: LogManifest
    bases: list[BaseManifest]
    findings: VerifyReport
    tip: Tip | None = None  # the last record, or the oldest base where none came yet
    coverage: dict[int, EpochCoverage] = field(default_factory=dict)
    _at: tuple[str, int] = ("", 0)  # the end of the last record

    def __post_init__(self) -> None:
        self._meaning = SemanticCheck(self.manifest, self.bases[-1].table if self.bases else None, self.findings)
        self._unmet = {base.number: base.tip for base in self.bases}
        self._first = 2**63
        past = self.manifest.tip
        if past is not None and self.bases and past.number > self.bases[0].number:
            self._unmet[past.number] = past

    def run(self) -> Tip | None:
        """The end of the log; everything between the oldest base and it is checked."""
        num_wrong = len(self.findings.errors)
        own = self.folder.listing.segments.get(self.manifest.epoch, [])
        files: list[tuple[str, int | None]] = [(sealed.file, sealed.bytes) for sealed in self.manifest.sealed]
        files += [(name, None) for name in own]
        for name, limit in files:
            if name in self.folder.sizes:
                self._check_file(name, limit)
        self._check_end(is_sound=len(self.findings.errors) == num_wrong)
        for epoch, counted in self.coverage.items():
            sealed = ", sealed" if epoch < self.manifest.epoch else ""
            self.findings.ok(
                f"epoch {epoch}: {plural(counted.num_versions, 'version')}, {version_name(counted.first)} to "
                f"{version_name(counted.last)}, {counted.num_bytes:,} bytes in "
                f"{plural(counted.num_files, 'file')}{sealed}"
            )
        self._report_ignored({name for name, _ in files})
        return self.tip

    def consequence(self, number: int) -> str:
        """What readers do about a version that cannot be read."""
        newest = self.bases[-1].number if self.bases else 0
        if not self.bases:
            return "there is no base to start from: nobody can follow the log"
        if number <= newest:
            return (
                f"followers begin at base {version_name(newest)}, behind it; versions before that base cannot be built"
            )
        before = self.tip if self.tip is not None and self.tip.number > newest else version_name(newest)
        return (
            f"followers stop at version {before}, and the next trainer goes on from there: what is behind it is lost; "
            "restore the file from a copy"
        )

    def _check_file(self, name: str, limit: int | None) -> None:
        path, size = self.folder.path / name, self.folder.sizes[name]
        end, offset = size if limit is None else min(size, limit), 0
        counted = self.coverage.setdefault(int(name[4:14]), EpochCoverage())
        counted.num_files += 1
        with path.open("rb") as file:
            while offset < end:
                header = self._header(
                    file, name, offset, end, is_cut=limit is not None and size < limit, is_sealed=limit is not None
                )
                if header is None:
                    break
                self._check_record(file, path, offset, header)
                offset += HEADER.size + header.length
                counted.num_versions, counted.last = counted.num_versions + 1, header.number
                counted.first = counted.first or header.number
                counted.num_bytes += HEADER.size + header.length
                self._at = (name, offset)
        if limit is not None and size < limit:
            what = f"it was sealed at {limit:,} bytes, and ends at {size:,}"
            self.findings.error(name, size, what, self.consequence(self.tip.number + 1 if self.tip else 0))
        elif limit is not None and size > limit:
            self.findings.note(f"{size - limit:,} bytes behind the seal, which nobody reads", name, limit)

    def _header(
        self, file: BinaryIO, name: str, offset: int, end: int, *, is_cut: bool, is_sealed: bool
    ) -> RecordHeader | None:
        """The next record's, where it is whole."""
        head = file.read(HEADER.size)
        next_number = self.tip.number + 1 if self.tip else 0
        try:
            header = parse_header(head) if len(head) == HEADER.size and offset + HEADER.size <= end else None
        except CorruptRecordError as error:
            what = f"{error}, and {end - offset:,} bytes from there on cannot be read"
            self.findings.error(name, offset, what, self.consequence(next_number))
            return None
        if header is not None and offset + HEADER.size + header.length <= end:
            return header
        if is_sealed and not is_cut:
            self.findings.error(name, offset, "the seal cuts a record", self.consequence(next_number))
        elif not is_cut:
            what = f"{end - offset:,} bytes of a record that is not whole: being written, or left by a kill"
            self.findings.note(what, name, offset)
        return None

    def _check_record(self, file: BinaryIO, path: Path, offset: int, header: RecordHeader) -> None:
        name, tip, version = path.name, self.tip, version_name(header.number)
        crc, pieces, left = 0, [], header.length
        while left:
            pieces.append(file.read(min(left, PIECE_BYTES)))
            crc, left = zlib.crc32(pieces[-1], crc), left - len(pieces[-1])
            if not pieces[-1]:
                break
        linked = self._link(name, offset, header)
        if crc != header.payload_crc:
            what = f"version {version} does not match its checksum"
            self.findings.error(name, offset, what, self.consequence(header.number))
        elif linked:
            record = Record(header.epoch, header.number, header.parent, header.checksum, b"".join(pieces))
            try:
                self._meaning.check(record, name, offset, self.consequence(header.number))
            except LogError as error:
                self.findings.error(name, offset, str(error), self.consequence(header.number))
        self._first = min(self._first, header.number)
        if tip is None or header.number > tip.number:
            self.tip = header.tip

    def _link(self, name: str, offset: int, header: RecordHeader) -> bool:
        """Whether the record follows the one before it, and meets the bases."""
        version, tip = version_name(header.number), self._before(header)
        wrong = ""
        if not header.epoch == header.number >> 32 == int(name[4:14]):
            wrong = f"version {version} of epoch {header.epoch} stands in a file of epoch {int(name[4:14])}"
        elif tip is not None and header.number <= tip.number:
            wrong = f"version {version} stands behind version {tip}: numbers only grow"
        elif tip is not None and header.parent != tip.checksum:
            wrong = f"version {version} does not follow version {tip}: records are missing or exchanged"
            wrong += self._missing_before(name) if not offset else ""
        if wrong:
            # what is missing before the newest base is missed by nobody who begins there
            newest = self.bases[-1] if self.bases else None
            is_bridged = newest is not None and newest.number < header.number and newest.checksum == header.parent
            number = newest.number if newest is not None and is_bridged else header.number
            self.findings.error(name, offset, wrong, self.consequence(number))
        base = self._unmet.pop(header.number, None)
        if base is not None and base != header.tip:
            what = f"version {version} is not the one that a base or the seal is made of"
            self.findings.error(name, offset, what, self.consequence(header.number))
        return not wrong

    def _before(self, header: RecordHeader) -> Tip | None:
        """What the record must follow: the one before it, or where it is the first behind the oldest base that base."""
        oldest = self.bases[0].tip if self.bases else None
        if self.tip is None and oldest is not None and header.number > oldest.number:
            self._unmet.pop(oldest.number, None)
            return oldest
        return self.tip

    def _missing_before(self, name: str) -> str:
        sealed = [sealed.file for sealed in self.manifest.sealed]
        epoch, count = int(name[4:14]), int(name[15:21])
        before = sealed[: sealed.index(name)] if name in sealed else sealed
        if name not in sealed and count:
            before = [segment_name(epoch, count - 1)]
        return f" ({before[-1]} is not there)" if before and before[-1] not in self.folder.sizes else ""

    def _check_end(self, *, is_sound: bool) -> None:
        """Whether all is there that is known to have been; where it `is_sound` up to the end, nothing else told so."""
        oldest = self.bases[0].number if self.bases else 0
        last = max(self.tip.number if self.tip else 0, oldest)
        for number in sorted(self._unmet):
            if number > last or (is_sound and (number > oldest or self._first < oldest)):
                what = f"version {version_name(number)}, of which a base or the seal is made, is not among the records"
                self.findings.error(*self._end(), what, self.consequence(number))
        durable = max(self._meaning.durable, self.folder.durable)
        if durable > last:
            what = f"the log ends at version {version_name(last)}, but {version_name(durable)} was durable"
            self.findings.error(*self._end(), what, self.consequence(durable))

    def _end(self) -> tuple[str, int | None]:
        if self._at[0]:
            return self._at
        names = [sealed.file for sealed in self.manifest.sealed] or [segment_name(self.manifest.epoch, 0)]
        return names[-1], None

    def _report_ignored(self, counting: set[str]) -> None:
        for epoch, names in self.folder.listing.segments.items():
            for name in names:
                if epoch < self.manifest.epoch and name not in counting:
                    what = (
                        "no manifest lists it, nobody reads it: left by a replaced trainer, it goes with the next base"
                    )
                    self.findings.note(what, name)
