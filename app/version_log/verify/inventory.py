"""The inventory of a log's folder: its files at one instant, its claims and manifests, and names that do not belong."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from springtide.app.version_log.trainer_status import all_statuses
from springtide.app.version_log.verify.report import VerifyReport, plural
from springtide_client.errors import LogError
from springtide_client.format.checksums import decode_checksummed_json, has_checksum
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import Listing, LogManifest, claim_name, manifest_name

_NUMBERED = re.compile(r"(epoch|manifest|seg|status)-(\d{10})(?:(?:-\d{5})?-\d{6})?\.(?:claim|json|log)")
_OWNED = re.compile(
    r"(?:base|state)-\d{20}|commands|pins|(?:trainer|compactor|retention|broker)\.lock|corruption\.json|broker\.(?:json|err)"
    r"|simulator\.json|\.tmp-.+"
)
REMOVE = "no reader uses it: remove it"


@dataclass(frozen=True)
class LogInventory:
    """The names in a log's folder, and the size of each segment, at one instant."""

    path: Path
    names: frozenset[str]
    listing: Listing
    sizes: dict[str, int]
    durable: int  # the newest version that a trainer's status calls durable

    @staticmethod
    def of(directory: LogDirectory) -> "LogInventory":
        """Take the inventory now."""
        # before the sizes, because what was durable then must be in the files
        durable = max((status.durable_version or 0 for status in all_statuses(directory.path)), default=0)
        listing = directory.scan()
        sizes = {}
        for _, name in listing.record_files:
            try:
                sizes[name] = (directory.path / name).stat().st_size
            except FileNotFoundError:  # deleted at this moment
                continue
        return LogInventory(directory.path, frozenset(os.listdir(directory.path)), listing, sizes, durable)

    def has_same_files(self, other: "LogInventory") -> bool:
        """Return True if no file was added or deleted; files may have grown."""
        return (self.listing.bases, self.listing.manifest_epoch, set(self.sizes)) == (
            other.listing.bases,
            other.listing.manifest_epoch,
            set(other.sizes),
        )


def check_inventory(inventory: LogInventory, report: VerifyReport) -> LogManifest | None:
    """Check claims, manifests and names; return the newest manifest, or None if it cannot be read."""
    listing = inventory.listing
    num_wrong = len(report.errors)
    for epoch in range(1, max(listing.claimed_epoch, listing.manifest_epoch) + 1):
        if claim_name(epoch) not in inventory.names:
            consequence = (
                "followers may wait, and a replaced trainer would not notice: create an empty file of that name"
            )
            report.error(claim_name(epoch), None, "it is missing", consequence)
    newest = None
    for epoch in range(1, listing.manifest_epoch + 1):
        if manifest_name(epoch) in inventory.names:
            newest = check_manifest(inventory, epoch, report)
    for name in sorted(inventory.names):
        check_name(inventory, name, report)
    if listing.claimed_epoch > listing.manifest_epoch:
        what = f"epoch {listing.claimed_epoch} is claimed but has no manifest"
        report.note(f"{what}: a trainer is starting, or died while starting")
    if len(report.errors) == num_wrong:
        epochs = plural(listing.claimed_epoch, "epoch")
        report.ok(f"{epochs}: claims and manifests; {plural(len(inventory.names), 'file')}, all known")
    return newest


def check_manifest(inventory: LogInventory, epoch: int, report: VerifyReport) -> LogManifest | None:
    """Check one epoch's manifest; return it, or None if it cannot be read."""
    name = manifest_name(epoch)
    consequence = "nothing reads it any more: remove it"
    if epoch == inventory.listing.manifest_epoch:
        consequence = "the log cannot be followed and no trainer can start: restore it from a copy"
    try:
        text = (inventory.path / name).read_bytes()
        manifest = decode_checksummed_json(text, LogManifest, name)
        schema = manifest.decode_schema()
    except LogError as error:
        report.error(name, None, str(error).removeprefix(f"{name} "), consequence)
        return None
    if not has_checksum(text):
        report.error(name, None, "the checksum at its end is damaged", consequence)
    elif manifest.epoch != epoch:
        report.error(name, None, f"it is the manifest of epoch {manifest.epoch}", consequence)
    elif manifest.fingerprint != schema.fingerprint():
        report.error(name, None, "its fingerprint does not match its schema", consequence)
    return manifest


def check_name(inventory: LogInventory, name: str, report: VerifyReport) -> None:
    """Report a name that no part of Springtide uses."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        if _OWNED.fullmatch(name) is None:
            report.error(name, None, "Springtide makes no file of this name", REMOVE)
        return
    kind, epoch, listing = numbered[1], int(numbered[2]), inventory.listing
    if epoch > max(listing.claimed_epoch, listing.manifest_epoch):
        report.error(name, None, f"epoch {epoch} was never claimed", REMOVE)
    elif kind == "seg" and epoch > listing.manifest_epoch:
        consequence = "followers wait, and the next trainer would ignore that segment: restore the manifest from a copy"
        report.error(manifest_name(epoch), None, f"it is missing, but {name} exists", consequence)
