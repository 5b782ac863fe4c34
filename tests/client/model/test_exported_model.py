"""A program is loaded once and called with any parameters; an archive that could run code is refused."""

import io
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from springtide_client.errors import LogError
from springtide_client.model.exported_model import ExportedModel
from springtide_client.model.inputs import ModelInputs


def random_inputs(num_samples: int, longest: int) -> ModelInputs:
    rng = np.random.default_rng(num_samples)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    lengths = rng.integers(0, longest + 1, (num_samples, 1))
    return ModelInputs(
        draw(num_samples, 2, 4),
        draw(num_samples, 1, 4),
        draw(num_samples, 1, longest, 4),
        lengths,
        draw(num_samples, 1),
    )


@pytest.mark.parametrize(("num_samples", "longest"), [(1, 1), (1, 7), (5, 1), (1000, 3)])
def test_probabilities_equal_the_sigmoid_of_the_program(toy_archive, toy_program, num_samples, longest) -> None:
    model = ExportedModel(toy_archive)
    inputs = random_inputs(num_samples, longest)
    expected = torch.sigmoid(toy_program.module()(*map(torch.from_numpy, inputs))).detach().numpy()
    found = model.predict(model.parameters({}), inputs)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_an_empty_batch_has_no_predictions(toy_archive) -> None:
    model = ExportedModel(toy_archive)
    assert model.predict(model.parameters({}), random_inputs(0, 1)).shape == (0, 2)


def test_parameters_are_replaced_by_name(toy_archive) -> None:
    model = ExportedModel(toy_archive)
    assert set(model.parameter_names) == {"linear.weight", "linear.bias", "mean", "seen"}
    first = model.parameters({"linear.weight": np.zeros((2, 18), np.float32), "seen": np.array(3)})
    bias = np.array([0.0, 2.0], np.float32)
    second = model.parameters({"linear.bias": bias, "only.training": np.zeros(3)}, before=first)
    bias[:] = 9.0  # what was handed over is copied
    probabilities = model.predict(second, random_inputs(2, 1))
    np.testing.assert_allclose(probabilities, [[0.5, 1 / (1 + np.exp(-2.0))]] * 2, rtol=1e-6)


def test_a_parameter_of_another_shape_is_refused(toy_archive) -> None:
    with pytest.raises(LogError, match=r"linear\.bias.*\(3,\)"):
        ExportedModel(toy_archive).parameters({"linear.bias": np.zeros(3, np.float32)})


def test_threads_may_load_at_the_same_time(toy_archive) -> None:
    barrier = threading.Barrier(4)

    def load(_: int) -> int:
        barrier.wait()
        return sum(len(ExportedModel(toy_archive).parameter_names) for _ in range(3))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(load, range(4))) == [12] * 4


def test_threads_with_different_parameters_do_not_mix(toy_archive) -> None:
    model = ExportedModel(toy_archive)
    inputs = random_inputs(16, 2)
    sides = [model.parameters({"linear.bias": np.full(2, value, np.float32)}) for value in (-3.0, 3.0)]
    expected = [model.predict(side, inputs) for side in sides]
    wrong: list[int] = []

    def call(side: int) -> None:
        for _ in range(200):
            if not np.array_equal(model.predict(sides[side], inputs), expected[side]):
                wrong.append(side)

    threads = [threading.Thread(target=call, args=(index % 2,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def rewrite(archive: bytes, change: Callable[[str, bytes], bytes], extra: dict[str, bytes] | None = None) -> bytes:
    """The archive with files changed or added."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
        root = old.namelist()[0].partition("/")[0]
        for name, content in (extra or {}).items():
            new.writestr(f"{root}/{name}", content)
    return changed.getvalue()


def replacing(old: bytes, new: bytes) -> Callable[[str, bytes], bytes]:
    return lambda name, content: content.replace(old, new) if name.endswith(".json") else content


@pytest.mark.parametrize(
    ("change", "extra", "message"),
    [
        (replacing(b'"use_pickle": false', b'"use_pickle": true'), {}, "pickled"),
        (replacing(b"", b""), {"data/sample_inputs/other.pt": b"\x80\x04."}, "sample inputs"),
        (replacing(b"", b""), {"data/weights/model.pt": b"\x80\x04."}, r"model\.pt"),
        (replacing(b"", b""), {"data/constants/opaque_obj_0": b"\x80\x04."}, "opaque_obj_0"),
        (replacing(b"", b""), {"data/aotinductor/model/x.so": b"\x7fELF"}, "aotinductor"),
        (replacing(b"torch.ops.aten.linear.default", b"torch.load"), {}, r"torch\.load"),
        (replacing(b"torch.ops.aten.linear.default", b"_operator.attrgetter"), {}, "attrgetter"),
        (replacing(b'"expr_str": "', b'"expr_str": "exec(chr(1))+'), {}, "exec"),
        (replacing(b"models", b"models"), {"models/model.json": b"{}"}, "twice"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_that_could_run_code_is_refused(toy_archive, change, extra, message) -> None:
    with pytest.raises(LogError, match=message):
        ExportedModel(rewrite(toy_archive, change, extra))


def test_a_rewritten_archive_is_accepted(toy_archive) -> None:
    ExportedModel(rewrite(toy_archive, replacing(b"", b"")))


def test_a_broken_archive_is_a_log_error(toy_archive) -> None:
    for archive in (b"", b"nonsense", toy_archive[:-100]):
        with pytest.raises(LogError):
            ExportedModel(archive)
