"""A base's model.onnx has the dense net with the base's own weights."""

import os
import select
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from springtide.app.models.config import ModelConfig
from springtide.app.models.export.onnx_export import is_possible
from springtide.app.models.export.torch_export import export_model
from springtide.app.models.registry import build_model
from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.onnx import (
    NET_ONLY,
    OUTPUTS,
    WHOLE_MODEL,
    OnnxBuilder,
    replace_weights,
    with_property,
)
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.errors import LogError
from springtide_client.format.records import VersionMeta
from springtide_client.log.base import ONNX, Base, ModelIdentity
from springtide_client.model.exported_model import ExportedModel
from springtide_client.model.inputs import ModelInputs
from springtide_client.model.view import dense_of
from tests.support.model_specs import spec_of_sizes
from tests.support.waiting import wait_until
from tests.support.writer_log import DIM, SCHEMA, TABLE, WriterLog, config, put, sync_twice

SPEC = spec_of_sizes(2, 1, 1, 2, 2, dim=DIM)


def inputs(num_samples: int, longest: int) -> ModelInputs:
    random = np.random.default_rng(num_samples)
    dense = random.lognormal(1, 1, (num_samples, 2)).astype(np.float32)
    dense[0] = np.nan
    return ModelInputs(
        random.normal(size=(num_samples, 2, DIM)).astype(np.float32),
        random.normal(size=(num_samples, 1, DIM)).astype(np.float32),
        random.normal(size=(num_samples, 1, longest, DIM)).astype(np.float32),
        random.integers(0, longest + 1, (num_samples, 1)),
        dense,
    )


def append(writer: LogWriter, model: torch.nn.Module, seed: int) -> None:
    """Append a durable version with other weights."""
    random = np.random.default_rng(seed)
    arrays = {
        f"dense.{name}": (value.numpy() + random.uniform(0.01, 0.3, value.shape)).astype(value.numpy().dtype)
        for name, value in model.state_dict().items()
    }
    writer.append(VersionMeta(), arrays)
    writer.sync()
    writer.append(VersionMeta(), {})
    writer.sync()


@pytest.fixture
def model() -> torch.nn.Module:
    return build_model(ModelConfig(name="dlrm"), SPEC, seed=0)


@pytest.fixture
def writer(log: WriterLog, model):
    """Open a log whose first base has the model."""
    writer = LogWriter.open(config(log.path), schema=SCHEMA)
    image = BaseImage(
        head=writer.first_base_head,
        schema=SCHEMA,
        table=TableImage(spec=TABLE),
        model=ModelIdentity(name="dlrm"),
        meta=VersionMeta(fingerprint=SCHEMA.fingerprint()),
        dense={},
        program=export_model(model, SPEC),
    )
    write_base(log.path, image)
    writer.start_after(writer.first_base_head)
    with writer:
        yield writer


@pytest.mark.skipif(not is_possible(), reason="the extra onnx is not installed: pip install 'springtide[onnx]'")
def test_a_compacted_base_predicts_in_onnxruntime_as_in_torch(log: WriterLog, writer, model, monkeypatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    maker = OnnxBuilder()
    for seed in (1, 2):
        append(writer, model, seed)
        base = Base.open(compact_log(log.directory, window_samples=10, onnx=maker))
        session = runtime.InferenceSession(base.path / ONNX, providers=["CPUExecutionProvider"])
        assert session.get_modelmeta().custom_metadata_map[OUTPUTS] == WHOLE_MODEL
        served = ExportedModel.load(base.model_path)
        for given in (inputs(1, 1), inputs(7, 4)):
            (logits_NL,) = session.run(["logits"], given._asdict())
            expected_NL = served.predict(served.parameters(dense_of(base.dense)), given)
            np.testing.assert_allclose(1 / (1 + np.exp(-logits_NL)), expected_NL, rtol=2e-6, atol=1e-7)
        # the next base has the same graph, which is not exported again
        monkeypatch.delattr(OnnxBuilder, "_export", raising=False)


@pytest.mark.skipif(not is_possible(), reason="the extra onnx is not installed: pip install 'springtide[onnx]'")
def test_beside_a_wide_part_the_file_says_that_it_holds_the_net_only(log: WriterLog, writer, model) -> None:
    import onnx

    writer.append(VersionMeta(), {"dense.wide.base_L": np.zeros(2)})
    writer.sync()
    append(writer, model, 1)
    base = Base.open(compact_log(log.directory, window_samples=10, onnx=OnnxBuilder()))
    assert [(p.key, p.value) for p in onnx.load(base.path / ONNX).metadata_props if p.key == OUTPUTS] == [
        (OUTPUTS, NET_ONLY)
    ]


def test_a_property_replaces_another_of_its_key() -> None:
    assert with_property(b"", "a", "b") == b"\x72\x06\x0a\x01a\x12\x01b"
    both = with_property(with_property(b"\x08\x07", "a", "long before"), "b", "c")
    assert with_property(both, "a", "d") == with_property(with_property(b"\x08\x07", "b", "c"), "a", "d")


def test_a_failed_export_is_logged_once_and_bases_are_written_without_it(log: WriterLog, caplog) -> None:
    maker = OnnxBuilder()
    with log.writer() as writer:  # its program is not a valid archive
        for value in (1, 2):
            put(writer, value)
            sync_twice(writer)
            assert ONNX not in Base.open(compact_log(log.directory, window_samples=10, onnx=maker)).manifest.files
    (warning,) = [record for record in caplog.records if record.name == "springtide.app.version_log.compact.onnx"]
    assert "the model's archive cannot be read" in warning.reason


def test_an_export_dies_with_its_compactor(tmp_path) -> None:
    program = tmp_path / "model.pt2"
    os.mkfifo(program)  # which the export waits to read
    code = "import sys; from pathlib import Path; from springtide.app.version_log.compact.onnx import OnnxBuilder; "
    code += "OnnxBuilder()._export(Path(sys.argv[1]))"
    compactor = subprocess.Popen([sys.executable, "-c", code, str(program)], env=os.environ | {"TMPDIR": str(tmp_path)})
    try:
        pipe = wait_until(lambda: opened(program), "the export to read its program")
        compactor.kill()
        compactor.wait()
        poll = select.poll()
        poll.register(pipe, 0)
        wait_until(lambda: poll.poll(0) == [(pipe, select.POLLERR)], "the export to end")
        os.close(pipe)
    finally:
        compactor.kill()
        compactor.wait()


def opened(pipe: Path) -> int:
    """A pipe's end for writing, 0 while nobody reads it."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return 0


def test_bytes_that_are_not_an_onnx_file_are_rejected() -> None:
    for content in (b"\x3a\x7f", b"\x3a\x05\x2a\x03\x42\x01", b"\x07"):
        with pytest.raises(LogError, match="does not match"):
            replace_weights(content, {"x": np.zeros(1, np.float32)})
