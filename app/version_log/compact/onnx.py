"""A base's `model.onnx`: made once of its exported program by a child process, carried on with newer weights."""

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from springtide_client.errors import LogError
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import MODEL, ONNX, Base

from app.version_log.compact.onnx_weights import with_weights

EXPORT_TIMEOUT_SECONDS = 600.0

logger = logging.getLogger(__name__)


class OnnxBuilder:
    """Gives the next base its file. What cannot be made is said once, and no base waits for it again."""

    def __init__(self) -> None:
        self._failed: set[int] = set()  # by their checksums

    def make(self, base: Base, arrays: Arrays) -> bytes | None:
        """The file of the base after this one, with the `dense.*` of `arrays`; None where it cannot be made."""
        program = base.manifest.files.get(MODEL)
        if program is None or program.crc32 in self._failed:
            return None
        try:
            known = (base.path / ONNX).read_bytes() if ONNX in base.manifest.files else self._export(base.path / MODEL)
            weights = {name.removeprefix("dense."): a for name, a in arrays.items() if name.startswith("dense.")}
            return with_weights(known, weights)
        except (LogError, OSError, subprocess.TimeoutExpired) as error:
            self._failed.add(program.crc32)
            logger.warning("the bases have no model.onnx", extra={"reason": str(error)})
            return None

    def _export(self, program: Path) -> bytes:
        """By a process of its own: whoever merges stays without torch."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / ONNX
            command = [sys.executable, "-m", "app.models.export_onnx", str(program), str(target)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=EXPORT_TIMEOUT_SECONDS, check=False)
            if done.returncode != 0:
                raise LogError((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
            return target.read_bytes()
