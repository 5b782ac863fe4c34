import contextlib
import threading
from pathlib import Path

from springtide.app.serving.feed.log_reader import LogReader
from springtide_client.errors import LogError
from springtide_client.format.records import Record, Tip
from springtide_client.log.directory import LogDirectory


class SlowCursor:
    """A read that lasts until `release`; records whether the cursor was closed meanwhile."""

    def __init__(self) -> None:
        self.reading, self.release = threading.Event(), threading.Event()
        self.tip, self.num_closed, self.closed_during_read = Tip(1, 1), 0, False

    def read(self, limit_bytes: int) -> list[Record]:
        self.reading.set()
        self.release.wait()
        self.closed_during_read = self.num_closed > 0
        raise LogError("over")

    def close(self) -> None:
        self.num_closed += 1


def test_a_reader_closed_during_a_read_is_closed_by_the_reading_thread(tmp_path: Path) -> None:
    reader, cursor = LogReader(LogDirectory(tmp_path), Tip(1, 1)), SlowCursor()
    reader._cursor = cursor

    def read() -> None:
        with contextlib.suppress(LogError):
            reader.read(Tip(1, 1), 1)

    thread = threading.Thread(target=read)
    thread.start()
    cursor.reading.wait()
    reader.close()
    assert cursor.num_closed == 0
    cursor.release.set()
    thread.join()
    assert (cursor.num_closed, cursor.closed_during_read) == (1, False)
    assert reader.read(Tip(1, 1), 1) == []
