"""A log's folder as it was at one instant, and the owner of every name in it."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
from springtide_client.errors import LogError
from springtide_client.format.checksummed_json import decode_checksummed_json
from springtide_client.log.directory import Listing, LogDirectory, LogManifest, claim_name, manifest_name

from app.version_log.verify.report import VerifyReport, plural

_NUMBERED = re.compile(r"(epoch|manifest|seg|status)-(\d{10})(?:-\d{6})?\.(?:claim|json|log)")
_OWNED = re.compile(
    r"base-\d{20}|commands|(?:trainer|compactor|broker)\.lock|corruption\.json|broker\.(?:json|err)|simulator\.json"
    r"|\.tmp-.+"
)
_TAIL = re.compile(rb',"crc32":(\d+)\}\s*$')
REMOVE = "no reader looks at it: remove it"


@dataclass(frozen=True)
class LogInventory:
    """Names, and how long each segment was."""

    path: Path
    names: frozenset[str]
    listing: Listing
    sizes: dict[str, int]
    durable: int  # the newest version that a trainer's status called durable

    @staticmethod
    def of(directory: LogDirectory) -> "LogInventory":
        """As it is now."""
        durable = reported_durable(directory.path)  # before the sizes: what was durable then must stand in the files
        listing = directory.scan()
        sizes = {}
        for name in (name for names in listing.segments.values() for name in names):
            try:
                sizes[name] = (directory.path / name).stat().st_size
            except FileNotFoundError:  # retired this very moment
                continue
        return LogInventory(directory.path, frozenset(os.listdir(directory.path)), listing, sizes, durable)

    def has_same_files(self, other: "LogInventory") -> bool:
        """Whether nothing came or went that may explain a finding; files may have grown."""
        return (self.listing.bases, self.listing.manifest_epoch, set(self.sizes)) == (
            other.listing.bases,
            other.listing.manifest_epoch,
            set(other.sizes),
        )


def reported_durable(log_path: Path) -> int:
    """The newest version that any trainer's status calls durable; 0 where none does."""
    told = 0
    for path in log_path.glob("status-*.json"):
        try:
            told = max(told, int(msgspec.json.decode(path.read_bytes())["durable_version"]))
        except (OSError, KeyError, TypeError, ValueError):  # replaced every second, and nobody's truth
            continue
    return told


def check_inventory(folder: LogInventory, findings: VerifyReport) -> LogManifest | None:
    """Claims, manifests and owners; the newest manifest, or None where it cannot be read."""
    listing = folder.listing
    num_wrong = len(findings.errors)
    for epoch in range(1, max(listing.claimed_epoch, listing.manifest_epoch) + 1):
        if claim_name(epoch) not in folder.names:
            reader = "followers may wait, and a replaced trainer would not notice: make an empty file of that name"
            findings.error(claim_name(epoch), None, "it is missing", reader)
    newest = None
    for epoch in range(1, listing.manifest_epoch + 1):
        if manifest_name(epoch) in folder.names:
            newest = check_manifest(folder, epoch, findings)
    for name in sorted(folder.names):
        check_owner(folder, name, findings)
    if listing.claimed_epoch > listing.manifest_epoch:
        findings.note(
            f"epoch {listing.claimed_epoch} is claimed and has sealed nothing: a trainer starts, or died starting"
        )
    if len(findings.errors) == num_wrong:
        epochs = plural(listing.claimed_epoch, "epoch")
        findings.ok(f"{epochs}: claims and manifests; {plural(len(folder.names), 'name')}, each with its owner")
    return newest


def check_manifest(folder: LogInventory, epoch: int, findings: VerifyReport) -> LogManifest | None:
    """One epoch's; None where it cannot be read."""
    name = manifest_name(epoch)
    reader = "nobody reads it any more: remove it"
    if epoch == folder.listing.manifest_epoch:
        reader = "nobody can follow the log, and no trainer can start: restore it from a copy"
    try:
        text = (folder.path / name).read_bytes()
        manifest = decode_checksummed_json(text, LogManifest, name)
        schema = manifest.decode_schema()
    except LogError as error:
        findings.error(name, None, str(error).removeprefix(f"{name} "), reader)
        return None
    if not has_checksum(text):
        findings.error(name, None, "the checksum at its end is damaged", reader)
    elif manifest.epoch != epoch:
        findings.error(name, None, f"it is the manifest of epoch {manifest.epoch}", reader)
    elif manifest.fingerprint != schema.fingerprint():
        findings.error(name, None, "its fingerprint is not that of its schema", reader)
    return manifest


def has_checksum(text: bytes) -> bool:
    """Whether a file of `encode_checksummed_json` still has its last key: one without it would be believed."""
    return _TAIL.search(text) is not None


def check_owner(folder: LogInventory, name: str, findings: VerifyReport) -> None:
    """Whether anybody in this system makes files of this name."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        if _OWNED.fullmatch(name) is None:
            findings.error(name, None, "it has no owner", REMOVE)
        return
    kind, epoch, listing = numbered[1], int(numbered[2]), folder.listing
    if epoch > max(listing.claimed_epoch, listing.manifest_epoch):
        findings.error(name, None, f"nobody has claimed epoch {epoch}", REMOVE)
    elif kind == "seg" and epoch > listing.manifest_epoch:
        reader = "followers wait, and the next trainer would leave that file out: restore the manifest from a copy"
        findings.error(manifest_name(epoch), None, f"it is missing, and {name} is there", reader)
