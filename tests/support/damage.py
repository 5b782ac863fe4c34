"""Damage to the files of a log: a flipped bit, and a base whose tensors are wrong and whose checksums are right."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from springtide_client.format.checksums import crc32_of_file, encode_checksummed_json
from springtide_client.format.tensors import map_tensors
from springtide_client.log.base import MANIFEST, FileChecksum, read_base_manifest
from tests.support.logs import write_safetensors


def flip(file: Path, offset: int | None = None, bit: int = 1) -> None:
    """Flip bits of one byte, by default of the one in the middle. Other bases that link the file keep theirs."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if offset is None else offset] ^= bit
    if file.stat().st_nlink > 1:
        file.unlink()
    file.write_bytes(content)


def forge(base: Path, name: str, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Change a file of a base and its checksum in the manifest, as a bug of the compactor would."""
    arrays = {tensor: np.array(array) for tensor, array in map_tensors(base / name).items()}
    change(arrays)
    (base / name).unlink()
    write_safetensors(base / name, arrays)
    manifest = read_base_manifest(base)
    manifest.files[name] = FileChecksum((base / name).stat().st_size, crc32_of_file(base / name))
    (base / MANIFEST).write_bytes(encode_checksummed_json(manifest))
