"""A real log with a small model, and a real server over it in a thread of this process."""

import io
import json
import threading
import time
import zlib
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
import torch
from springtide_client.format.records import VersionMeta, encode_record
from springtide_client.format.tensors import encode_tensors
from springtide_client.keys import hash_string, mix_keys
from springtide_client.schema import Schema

from app.serving.config import ServeConfig
from app.serving.server.serve import serve
from tests.app.serving.target import Target

DIM = 4
SCHEMA = Schema(
    labels=("click", "order"),
    categorical=("user_id", "item_id"),
    multi_value=("genres",),
    sequence=("last_items",),
    dense=("age",),
    share={"last_items": "item_id"},
)
USER, ITEM, GENRE = 0, 1, 2


class Toy(torch.nn.Module):
    """Linear in everything."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4 * DIM + 1, 2)

    def forward(self, categorical, pooled, sequence, sequence_length, dense):
        mask = torch.arange(sequence.shape[2])[None, None] < sequence_length[..., None]
        summed = (sequence * mask[..., None]).sum(2)
        parts = [categorical.flatten(1), pooled.flatten(1), summed.flatten(1), torch.nan_to_num(dense)]
        return self.linear(torch.cat(parts, 1))


@pytest.fixture(scope="session")
def archive():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch, longest = torch.export.Dim("batch", min=1), torch.export.Dim("longest", min=1)
    example = (
        torch.randn(3, 2, DIM),
        torch.randn(3, 1, DIM),
        torch.randn(3, 1, 5, DIM),
        torch.ones(3, 1, dtype=torch.int64),
        torch.randn(3, 1),
    )
    sizes = ({0: batch}, {0: batch}, {0: batch, 2: longest}, {0: batch}, {0: batch})
    program = torch.export.export(Toy().eval(), example, dynamic_shapes=sizes)
    program._example_inputs = None
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def wait_until(check, *, seconds=20.0):
    """The first true value of check()."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.005)
    raise AssertionError("it did not happen in time")


class ToyLog:
    """Writes what a trainer would write."""

    def __init__(self, path: Path, archive: bytes) -> None:
        self.path, self.archive = path, archive
        self.number = self.checksum = 0
        self.epoch, self.count = 0, 0
        self.rows: dict[tuple[int, int], tuple[np.ndarray, int, int]] = {}
        self.texts: dict[tuple[int, int], bytes] = {}
        self.dense: dict[str, np.ndarray] = {}

    def start(self) -> None:
        """The first epoch, its base and manifest."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.epoch = 1
        (self.path / f"epoch-{1:010d}.claim").touch()
        self.number = self.checksum = 1 << 32
        self.write_base()
        tip = {"number": self.number, "checksum": self.checksum}
        document = {
            "epoch": 1,
            "sealed": [],
            "base": tip,
            "tip": tip,
            "schema": json.loads(SCHEMA.to_json()),
            "fingerprint": SCHEMA.fingerprint(),
        }
        draft = self.path / ".tmp-manifest"
        draft.write_text(json.dumps(document))
        draft.rename(self.path / f"manifest-{1:010d}.json")

    def meta(self, **changes) -> VersionMeta:
        now_ms = time.time_ns() // 1_000_000
        facts = {"created_ms": now_ms, "complete_until_ms": now_ms, "fingerprint": SCHEMA.fingerprint()}
        return VersionMeta(**facts | changes)

    def publish(self, rows=None, *, forget=(), texts=(), dense=None, **meta) -> int:
        """One version; rows: {(feature, id): vector}. Returns its number."""
        now_ms = time.time_ns() // 1_000_000
        made = {key: (np.array(vector, np.float32), 1, now_ms) for key, vector in (rows or {}).items()}
        tensors = {}
        if made:
            tensors |= {
                "rows.feature": np.array([feature for feature, _ in made], np.uint16),
                "rows.id": np.array([row_id for _, row_id in made], np.int64),
                "rows.value": np.array([row[0] for row in made.values()], np.float32).reshape(-1, DIM),
                "rows.state": np.zeros((len(made), 1), np.float32),
                "rows.count": np.array([row[1] for row in made.values()], np.int64),
                "rows.last_seen": np.array([row[2] for row in made.values()], np.int64),
            }
        if forget:
            tensors |= {
                "forgotten.feature": np.array([feature for feature, _ in forget], np.uint16),
                "forgotten.id": np.array([row_id for _, row_id in forget], np.int64),
            }
        new = {(feature, hash_string(text.encode())): text.encode() for feature, text in texts}
        if new:
            tensors |= text_tensors(new, "texts.")
        tensors |= {f"dense.{name}": array for name, array in (dense or {}).items()}
        self.count += 1
        number = (self.epoch << 32) + self.count
        frame, checksum = encode_record(self.epoch, number, self.checksum, self.meta(**meta), tensors)
        with (self.path / f"seg-{self.epoch:010d}-{0:06d}.log").open("ab") as file:
            file.write(frame)
        self.number, self.checksum = number, checksum
        for key in forget:
            self.rows.pop(key, None)
        self.rows |= made
        self.texts |= new
        self.dense |= dense or {}
        return number

    def write_base(self) -> Path:
        """The present as a base."""
        keys = list(self.rows)
        features = np.array([feature for feature, _ in keys], np.uint16)
        ids = np.array([row_id for _, row_id in keys], np.int64)
        order = np.argsort(mix_keys(features, ids), kind="stable")
        values = np.array([self.rows[key][0] for key in keys], np.float32).reshape(-1, DIM)
        counts = np.array([self.rows[key][1] for key in keys], np.int64)
        seen = np.array([self.rows[key][2] for key in keys], np.int64)
        folder = self.path / f".tmp-base-{self.number:020d}"
        folder.mkdir()
        files = {
            "rows.safetensors": {
                "mixed": mix_keys(features, ids)[order],
                "feature": features[order],
                "id": ids[order],
                "value": values[order],
                "count": counts[order],
                "last_seen": seen[order],
            },
            "optimizer.safetensors": {"state": np.zeros((len(keys), 1), np.float32)},
            "dense.safetensors": {f"dense.{name}": array for name, array in self.dense.items()},
        }
        if self.texts:
            files["texts.safetensors"] = text_tensors(self.texts, "")
        for name, tensors in files.items():
            (folder / name).write_bytes(b"".join(bytes(piece) for piece in encode_tensors(tensors)))
        (folder / "model.pt2").write_bytes(self.archive)
        manifest = {
            "number": self.number,
            "checksum": self.checksum,
            "epoch": self.epoch,
            "created_ms": time.time_ns() // 1_000_000,
            "schema": json.loads(SCHEMA.to_json()),
            "table": {"dim": DIM, "state_width": 1, "seed": 7, "init_scale": 0.05, "optimizer": {}},
            "model": {"name": "toy", "options": {}},
            "meta": json.loads(msgspec.json.encode(self.meta())),
            "files": {
                path.name: {"bytes": path.stat().st_size, "crc32": zlib.crc32(path.read_bytes())}
                for path in sorted(folder.iterdir())
            },
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        path = self.path / f"base-{self.number:020d}"
        folder.rename(path)
        return path

    def write_status(self, **status) -> None:
        """The trainer's status file."""
        facts = {"trainer": "running", "reason": "", "updated_ms": time.time_ns() // 1_000_000, "clean_end": False}
        draft = self.path / ".tmp-status"
        draft.write_text(json.dumps(facts | status))
        draft.rename(self.path / f"status-{max(1, self.epoch):010d}.json")


def text_tensors(texts, prefix):
    keys = sorted(texts)
    lengths = [len(texts[key]) for key in keys]
    return {
        f"{prefix}feature": np.array([feature for feature, _ in keys], np.uint16),
        f"{prefix}id": np.array([row_id for _, row_id in keys], np.int64),
        f"{prefix}offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        f"{prefix}bytes": np.frombuffer(b"".join(texts[key] for key in keys), np.uint8),
    }


class World:
    """A log, its server, and who asks it."""

    def __init__(self, log: ToyLog) -> None:
        self.log = log
        self._servers: list[tuple[threading.Thread, threading.Event]] = []
        self._clients: list[httpx.Client] = []

    def serve(self, **config) -> httpx.Client:
        """Start a server; returns a client of it."""
        urls: list[str] = []
        until = threading.Event()
        settings = ServeConfig(port=0, **config)
        thread = threading.Thread(
            target=serve, args=(self.log.path, settings), kwargs={"on_listening": urls.append, "until": until}
        )
        thread.start()
        self._servers.append((thread, until))
        wait_until(lambda: urls)
        client = httpx.Client(base_url=urls[0], timeout=20)
        self._clients.append(client)
        return client

    def served(self, client: httpx.Client, number: int) -> None:
        """Return once the version is served."""
        wait_until(lambda: (client.get("/readyz").json().get("version") or 0) >= number)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for thread, until in self._servers:
            until.set()
            thread.join(timeout=20)
            assert not thread.is_alive()


@pytest.fixture
def world(tmp_path, archive):
    made = World(ToyLog(tmp_path / "log", archive))
    yield made
    made.close()


@pytest.fixture(scope="module")
def target(tmp_path_factory, archive):
    made = World(ToyLog(tmp_path_factory.mktemp("target") / "log", archive))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPRINGTIDE_TOKENS", "admin=admin-secret")
        asked = Target(made)
    yield asked
    asked.close()
    made.close()
