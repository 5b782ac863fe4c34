"""The number of bytes that a simulated power loss takes."""

import random
from pathlib import Path

from tests.torture.disk.fsync_recorder import FsyncRecorder
from tests.torture.disk.power_loss import CrashedDisk, LossProfile


def test_truncated_tails_are_counted_and_restored_files_are_not(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    (root / "log").mkdir(parents=True)
    (root / "log" / "seg-old").write_bytes(b"x" * 1000)
    (root / "log" / "seg-new").write_bytes(b"y" * 10)
    recorder = FsyncRecorder(root, tmp_path / "record")
    recorder.record_all()
    (root / "log" / "seg-old").unlink()  # without an fsync of the folder
    with (root / "log" / "seg-new").open("ab") as file:
        file.write(b"z" * 7)  # without an fsync of the file
    (root / "log" / "seg-newest").write_bytes(b"v" * 5)
    crashed_disk = CrashedDisk(recorder, tmp_path / "record", LossProfile(0.0, 0.0), random.Random(0))
    assert crashed_disk.num_bytes_lost("seg-*") == 7 + 5
    crashed_disk.make()
    sizes = {path.name: path.stat().st_size for path in (root / "log").iterdir()}
    assert sizes == {"seg-old": 1000, "seg-new": 10}
