"""`springtide versions`: looks at the log, verifies it, takes a model out of it."""

import argparse
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from springtide_client.log_directory import LogDirectory
    from springtide_client.records import Record

HELP = "list, show, verify or export the versions in the log"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="the newest versions")
    listing.add_argument("--limit", type=int, default=20, metavar="N")
    actions.add_parser("show", help="one version as JSON").add_argument("version", nargs="?", default="latest")
    actions.add_parser("verify", help="read every record and every base, compare checksums")
    export = actions.add_parser("export", help="write a self-contained model snapshot (safetensors)")
    export.add_argument("version", nargs="?", default="latest")
    export.add_argument("--out", type=Path, metavar="FILE", help="default: <name>-<version>.safetensors")
    export.add_argument("--rows", choices=("all", "none"), default="all")
    for name in ("diff", "rollback"):
        actions.add_parser(name, help="not in this release").add_argument("versions", nargs="*")
    for action in actions.choices.values():
        # absent here, it leaves alone what stood before the action
        action.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="as every command has it")


def run(arguments: argparse.Namespace) -> int:
    from springtide_client.log_directory import LogDirectory

    from app.config import load_outline
    from app.errors import UserError

    outline = load_outline(arguments.config)
    if arguments.action in ("diff", "rollback"):
        raise UserError(f"versions {arguments.action} is not in this release; list, show, verify and export are")
    directory = LogDirectory(outline.log.path)
    if directory.manifest() is None:
        raise UserError(f"there is no log in {outline.log.path} yet: `springtide run` begins one")
    if arguments.action == "list":
        return print_list(directory, arguments.limit)
    if arguments.action == "show":
        return print_version(directory, arguments.version)
    if arguments.action == "verify":
        return verify(directory)
    return export(directory, arguments.version, arguments.out, outline.name, with_rows=arguments.rows == "all")


def print_list(directory: "LogDirectory", limit: int) -> int:
    """The newest versions, oldest first; bases beside them."""
    import time

    from springtide_client.records import version_name

    print(f"{'version':>14}  {'created':19}  {'samples':>13}  {'bytes':>12}")
    for record in deque(directory.records(None), maxlen=max(limit, 0)):
        created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.meta.created_ms / 1_000))
        samples, size = record.meta.samples_trained, record.num_bytes
        print(f"{version_name(record.tip.number):>14}  {created}  {samples:>13,}  {size:>12,}")
    for path in directory.bases():
        print(f"base {version_name(int(path.name.removeprefix('base-')))}: {path}")
    return 0


def print_version(directory: "LogDirectory", name: str) -> int:
    """What a version's record says, without its tensors."""
    import msgspec
    from springtide_client.records import version_name

    record = find(directory, name)
    tensors = {tensor: list(array.shape) for tensor, array in record.tensors().items()}
    shown = {
        "version": record.tip.number,
        "name": version_name(record.tip.number),
        "parent": f"{record.parent:016x}",
        "checksum": f"{record.tip.checksum:016x}",
        "bytes": record.num_bytes,
        **msgspec.to_builtins(record.meta),
        "tensors": tensors,
    }
    print(msgspec.json.format(msgspec.json.encode(shown)).decode())
    return 0


def find(directory: "LogDirectory", name: str) -> "Record":
    """The record of a version given as "latest", "epoch.count" or a number."""
    from app.errors import UserError

    number = number_of(name)
    newest = None
    for record in directory.records(None):
        newest = record
        if record.tip.number == number:
            return record
    if number is None and newest is not None:
        return newest
    raise UserError(
        f"version {name} is not in the log (retired, or never there): `springtide versions list` shows them"
    )


def number_of(name: str) -> int | None:
    """The version's number; None for "latest"."""
    from springtide_client.records import EPOCH_SHIFT

    from app.errors import UserError

    epoch, dot, count = name.partition(".")
    if name == "latest":
        return None
    if epoch.isdecimal() and (count.isdecimal() if dot else True):
        return (int(epoch) << EPOCH_SHIFT) + int(count) if dot else int(epoch)
    raise UserError(f'version {name!r}: write a number, "epoch.count" such as 3.1207, or latest')


def verify(directory: "LogDirectory") -> int:
    """Every base's files against their checksums, every record against its own and its parent's."""
    from springtide_client.base import Base

    for path in directory.bases():
        base = Base.open(path)
        base.verify()
        print(f"ok  {path.name}: {len(base):,} rows")
    num_records = num_bytes = 0
    for record in directory.records(None):
        record.tensors()
        num_records, num_bytes = num_records + 1, num_bytes + record.num_bytes
    print(f"ok  {num_records:,} versions, {num_bytes:,} bytes")
    return 0


def export(directory: "LogDirectory", name: str, out: Path | None, log_name: str, *, with_rows: bool) -> int:
    """The model snapshot of GET /v1/snapshot, as a file."""
    import threading

    from springtide_client.records import version_name

    from app.errors import UserError
    from app.serving.snapshot import Snapshot, view_at

    number = number_of(name)
    if number is None:
        newest = deque(directory.records(None), maxlen=1)
        bases = directory.bases()
        number = newest[0].tip.number if newest else int(bases[-1].name.removeprefix("base-"))
    view = view_at(directory, number)
    if view is None:
        raise UserError(
            f"version {name} can no longer be built from the log: `springtide versions list` shows which can"
        )
    path = out or Path(f"{log_name}-{version_name(number)}.safetensors")
    draft = path.with_name(f".{path.name}.tmp")
    try:
        Snapshot.of(view, with_rows=with_rows).write(draft, stopping=threading.Event())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    print(f"{path}: version {version_name(number)}, {path.stat().st_size:,} bytes")
    return 0
