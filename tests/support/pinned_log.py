"""A log with a pinned version far behind what retention keeps otherwise."""

from types import TracebackType

from springtide.app.version_log.commands.pin import pin_version
from springtide.app.version_log.compact.retention import apply_retention
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import RowImage
from springtide_client.log.directory import LogDirectory
from tests.support.random_versions import RandomVersions
from tests.support.writer_log import Key, Row, WriterLog, put

SEGMENT_BYTES = 1 << 16


class PinnedLog:
    """Opens a writer; `rows` are those of the version `pinned`, whose pin is called `far`."""

    def __init__(self, log: WriterLog, seed: int = 1) -> None:
        self.log = log
        self.writer = log.open(segment_bytes=SEGMENT_BYTES)
        self.random = RandomVersions(log, self.writer, seed)
        self.random.write(12)
        self.writer.sync()
        self.pinned, self.rows = self.writer.last_number, dict(self.random.now)
        pin_version(log.path, "latest", "far")

    def leave_only_the_pin(self) -> None:
        """Append several segments and bases, so that nothing between the pinned version and the newest is left."""
        for _ in range(3):
            fill(self.random)
        assert not LogIndex(self.log.directory).runs.are_connected(self.pinned, self.writer.last_number)

    def __enter__(self) -> "PinnedLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.writer.close()


def fill(random_log: RandomVersions) -> None:
    """Append more than one segment, make it a base, and let retention keep nothing else."""
    random_log.write(4)
    for _ in range(3):
        random_log.now[0, 1] = (1.0, 100)
        put(random_log.writer, 1, trainer={"padding": "x" * 30_000}, expiry_cutoffs={"1": random_log.horizon})
    random_log.compact()
    apply_retention(random_log.log.directory, 1)


def image_rows(directory: LogDirectory, number: int) -> dict[Key, Row]:
    """Return the rows that a reader finds at a version."""
    found: dict[Key, Row] = {}
    for layer in RowImage(LogIndex(directory), number).rows():
        for i in range(len(layer)):
            found[int(layer.feature[i]), int(layer.id[i])] = float(layer.value[i, 0]), int(layer.last_seen[i])
    return found
