"""`springtide check` says whether the limits of disk and memory can work together."""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from springtide.app.config.load import Config, load_config
from springtide.app.serving.config import ServeConfig
from springtide.app.tools.diagnosis import (
    Diagnosis,
    check_cluster,
    check_disk,
    check_disk_caps,
    check_history,
    check_losses,
    check_memory,
    check_parts,
    check_spill_format,
)
from springtide.embeddings.tiers.rocksdb import spill, table_files
from springtide.stream.broker.embedded import EmbeddedBroker
from tests.stream.history.clicks import click, write_clicks
from tests.support.config import Section, write_config
from tests.support.kafka import produce
from tests.support.ports import free_port

SMALL = {"name": "shop", "schema": {"label": "click", "categorical": ["user_id"], "dense": ["price"]}}


def loaded(tmp_path: Path, *layers: Section | str) -> Config:
    return load_config(write_config(tmp_path / "springtide.toml", SMALL, *layers))


def check(tmp_path: Path, text: str) -> Diagnosis:
    return check_disk_caps(loaded(tmp_path, text))


def test_the_default_limits_work_together(tmp_path: Path) -> None:
    found = check(tmp_path, "")
    assert found.state == "ok"
    assert found.text.startswith("disk: [log] log_bytes is 20,480.0 MiB, of which a base may take 6,400.0 MiB: about ")


def test_memory_for_more_rows_than_the_disk_is_noted(tmp_path: Path) -> None:
    found = check(tmp_path, '[table]\ndisk_bytes = "64MiB"\ndevice_bytes = "32MiB"')
    assert found.state == "note"
    assert "half of [table] disk_bytes is 32.0 MiB" in found.text
    assert found.text.endswith("raise disk_bytes, or lower device_bytes")


def test_a_net_that_leaves_no_room_for_rows_is_a_problem(tmp_path: Path) -> None:
    limits = '[table]\ndisk_bytes = "16MiB"\ndevice_bytes = "1MiB"\n'
    assert check(tmp_path, limits).state == "ok"
    found = check(tmp_path, limits + "[model]\noptions = { top = [2048, 512] }\n")
    assert found.state == "problem"
    assert "the net alone takes about" in found.text
    assert ": raise it to " in found.text


def test_losses_that_do_not_go_with_the_wide_part_are_noted(tmp_path: Path) -> None:
    def found(text: str) -> list[Diagnosis]:
        labels = {"schema": {"label": None, "labels": ["click", "order"]}}
        return list(check_losses(loaded(tmp_path, labels, text)))

    assert found('[train]\nloss = "pairwise"') == []
    (noted,) = found('[labels.order]\nloss = "focal"')
    assert noted.state == "note"
    assert "label 'order'" in noted.text
    assert "set [model] wide = false" in noted.text
    assert len(found('[train]\nloss = "listwise"')) == 2
    assert found('[train]\nloss = "listwise"\n[model]\nwide = false') == []


def test_too_little_memory_is_a_problem_that_names_what_is_enough(tmp_path: Path) -> None:
    def problems(device_bytes: str) -> list[Diagnosis]:
        changes = {"schema": {"categorical": ["user_id", "item_id"]}, "table": {"device_bytes": device_bytes}}
        return list(check_memory(loaded(tmp_path, changes)))

    (found,) = problems("1KiB")
    assert found.state == "problem"
    text = r"memory: \[table\] device_bytes = 1KiB is too small: these tables need at least (\d+)KiB"
    match = re.fullmatch(text, found.text)
    assert match is not None, found.text
    assert problems(f"{match[1]}KiB") == []
    assert f"at least {match[1]}KiB" in problems(f"{int(match[1]) - 1}KiB")[0].text


def test_paths_where_no_file_can_be_are_problems_that_name_their_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    paths = {"table": {"disk_path": tmp_path / "file"}, "log": {"path": "/proc/nowhere"}}
    log, spill = check_disk(loaded(tmp_path, paths))
    assert log == ("problem", "log: /proc/nowhere is not on a disk: set another [log] path")
    assert spill.state == "problem"
    assert spill.text.endswith("file cannot be written: change its owner, or set another [table] disk_path")


def check_ranks(tmp_path, text: str) -> tuple[str, str]:
    return check_cluster(loaded(tmp_path, {"schema": {"categorical": ["user_id", "item_id"], "dense": None}}, text))


def test_formats_and_the_time_after_which_a_rank_is_dead_are_told(tmp_path):
    state, text = check_ranks(tmp_path, '[cluster]\nrows = "int8"\ntimeout_seconds = 5\n')
    assert state == "ok"
    assert "rows as int8, gradients as float32" in text
    assert text.endswith("silent for 5 s counts as dead")


def test_a_rank_needs_a_gpu_of_its_own(tmp_path, monkeypatch):
    on_gpu = '[train]\ndevice = "cuda"\n'
    for num_gpus, nccl, found in [
        (1, True, ("note", "torch sees 1 here, and has NCCL")),
        (2, False, ("note", "torch sees 2 here, and lacks NCCL")),
        (4, True, ("ok", "up to 4 ranks (`springtide train --ranks R`), one for each GPU, would exchange rows as")),
    ]:
        monkeypatch.setattr("torch.cuda.device_count", lambda num_gpus=num_gpus: num_gpus)
        monkeypatch.setattr("springtide.app.tools.diagnosis.is_nccl_available", lambda nccl=nccl: nccl)
        state, text = check_ranks(tmp_path, on_gpu)
        assert state == found[0]
        assert found[1] in text
    state, text = check_ranks(tmp_path, on_gpu + "cuda_graphs = true\n")
    assert (state, "cuda_graphs does not go with several" in text) == ("note", True)


@contextmanager
def responding(body: bytes):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(0.01))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_each_part_is_asked_what_it_holds() -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    with (
        responding(json.dumps({"status": "ok", "range": "1/4"}).encode()) as first,
        responding(json.dumps({"status": "ok"}).encode()) as whole,
        responding(b"<html>") as stranger,
    ):
        found = list(check_parts(ServeConfig(parts=(first, whole, stranger, gone))))
        assert [state for state, _ in found] == ["ok", "problem", "problem", "note"]
        texts = [text for _, text in found]
        assert texts[0] == f"part: 1/4 at {first} answers"
        assert 'holds part 1/1: start it with range = "2/4"' in texts[1]
        assert "is not a Springtide server: it responded 200" in texts[2]
        assert f"part 4/4 at {gone} does not answer" in texts[3]


def test_a_part_alone_and_a_server_of_everything() -> None:
    assert list(check_parts(ServeConfig())) == []
    ((state, text),) = check_parts(ServeConfig(range="1/4"))
    assert (state, text.startswith("part: this server looks up the rows of 1/4, and nothing else")) == ("note", True)


def test_a_spill_whose_format_only_rocksdb_reads_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(check_spill_format()) == []
    monkeypatch.setattr(table_files, "FORMAT_VERSION", 99)
    (noted,) = check_spill_format()
    assert noted.state == "note"
    assert "unknown here (another version of the table format); rows on disk are read through RocksDB" in noted.text


def test_a_missing_disk_tier_is_named_with_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    found = spill.importlib.util.find_spec
    monkeypatch.setattr(spill.importlib.util, "find_spec", lambda name: None if name == "rocksdbpy" else found(name))
    (noted,) = check_spill_format()
    assert noted.state == "note"
    assert noted.text.startswith("spill: the disk tier is missing, as this Python has no rocksdb-py")
    assert "memory is the last tier. A row that [table] device_bytes has no room for is deleted" in noted.text


CLICKS_SCHEMA = {"schema": {"timestamp": "ts", "categorical": ["user_id"], "dense": []}}


def history_lines(config: Config) -> list[str]:
    return [f"{found.state} {found.text}" for found in check_history(config)]


def test_a_history_is_described_and_compared_with_the_topic(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    history = {"history": {"path": str(folder)}}
    log = {"log": {"path": str(tmp_path / "log")}}
    assert history_lines(loaded(tmp_path, CLICKS_SCHEMA, log)) == []
    assert "names no file" in history_lines(loaded(tmp_path, CLICKS_SCHEMA, log, history))[0]
    write_clicks(folder / "a.jsonl", range(100))
    config = loaded(tmp_path, CLICKS_SCHEMA, log, history)
    found = history_lines(config)
    assert found[0] == "ok history: 1 files, 0.0 MiB, from 2023-11-14T22:13:20Z to 2023-11-14T22:14:59Z"
    assert found[1].startswith("note history: where the topic goes on cannot be said: ")
    with EmbeddedBroker(tmp_path / "log") as broker:
        produce(broker.address, "clicks", [json.dumps(click(user)).encode() for user in range(50, 120)])
        assert history_lines(config)[1] == ("ok history: the topic goes on at 2023-11-14T22:14:34Z in a new log")
        late = loaded(tmp_path, CLICKS_SCHEMA, log, {"history": {"path": str(folder), "until": "2023-11-14T22:20"}})
        assert history_lines(late)[1].startswith(
            "problem history: the files end at 2023-11-14T22:14:59Z, before the seam at 2023-11-14T22:20:00Z: "
        )
