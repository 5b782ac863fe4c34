"""Python imports this at the start of every process that has this folder in its path: it records fsyncs."""

import os

if "SPRINGTIDE_RECORD" in os.environ:
    import importlib.util
    from pathlib import Path

    spec = importlib.util.spec_from_file_location("disk_record", Path(__file__).parents[1] / "disk_record.py")
    assert spec is not None
    assert spec.loader is not None
    disk_record = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(disk_record)
    root, folder = os.environ["SPRINGTIDE_RECORD"].split(os.pathsep)
    disk_record.FsyncRecorder(Path(root), Path(folder)).install()
