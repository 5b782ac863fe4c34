"""Python imports this module at the start of a process that has this folder in its path: record its fsyncs."""

import os

if "SPRINGTIDE_RECORD" in os.environ:
    import importlib.util
    from pathlib import Path

    spec = importlib.util.spec_from_file_location("fsync_recorder", Path(__file__).parents[1] / "fsync_recorder.py")
    assert spec is not None
    assert spec.loader is not None
    fsync_recorder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fsync_recorder)
    root, folder = os.environ["SPRINGTIDE_RECORD"].split(os.pathsep)
    fsync_recorder.FsyncRecorder(Path(root), Path(folder)).install()
