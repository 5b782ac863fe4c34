"""What a power loss is said to have taken."""

import random
from pathlib import Path

from tests.torture.disk.fsync_recorder import FsyncRecorder
from tests.torture.disk.power_loss import CrashedDisk, LossProfile


def test_a_file_that_comes_back_is_no_gain_and_a_tail_that_is_cut_is_counted(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    (root / "log").mkdir(parents=True)
    (root / "log" / "seg-old").write_bytes(b"x" * 1000)
    (root / "log" / "seg-new").write_bytes(b"y" * 10)
    recorder = FsyncRecorder(root, tmp_path / "record")
    recorder.record_all()
    (root / "log" / "seg-old").unlink()  # and the folder is not fsynced
    with (root / "log" / "seg-new").open("ab") as file:
        file.write(b"z" * 7)  # nor is the file
    (root / "log" / "seg-newest").write_bytes(b"v" * 5)
    wreck = CrashedDisk(recorder, tmp_path / "record", LossProfile(0.0, 0.0), random.Random(0))
    assert wreck.num_bytes_lost("seg-*") == 7 + 5
    wreck.make()
    sizes = {path.name: path.stat().st_size for path in (root / "log").iterdir()}
    assert sizes == {"seg-old": 1000, "seg-new": 10}
