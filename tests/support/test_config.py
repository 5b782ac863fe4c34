import tomllib
from pathlib import Path

from tests.support.config import edit_config, write_config


def test_later_layers_win_key_by_key(tmp_path: Path) -> None:
    base = {"name": "a", "log": {"path": "x", "durable_seconds": 1.0}, "features": {"item_id": {"ttl_seconds": 5}}}
    path = write_config(
        tmp_path / "a.toml", base, {"log": {"path": tmp_path}, "train": {"max_wait_seconds": float("inf")}}
    )
    edit_config(path, {"log": {"durable_seconds": None, "onnx": False}, "features": {"user_id": {}}})
    assert tomllib.loads(path.read_text()) == {
        "name": "a",
        "log": {"path": str(tmp_path), "onnx": False},
        "features": {"item_id": {"ttl_seconds": 5}, "user_id": {}},
        "train": {"max_wait_seconds": float("inf")},
    }
