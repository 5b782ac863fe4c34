"""`springtide versions verify`: reads the whole log and says what is wrong."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.config import Outline

HELP = "read every record and every base, compare checksums"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(outline: "Outline", arguments: argparse.Namespace) -> int:
    from springtide_client.base import Base
    from springtide_client.log_directory import LogDirectory

    from app.versions.index import LogIndex

    del arguments
    directory = LogDirectory(outline.log.path)
    LogIndex(directory)
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
