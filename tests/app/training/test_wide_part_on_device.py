"""With the net on a device the host learns the wide part, as it does without one."""

import numpy as np
import pytest
import torch
from msgspec import structs

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.models.wide_part import add_wide_part
from springtide.app.training.bootstrap import with_wide_rows
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.device import TrainDevice
from springtide.app.training.step.learner import Learner
from springtide.app.version_log.change.plan import CROSSES_TABLE
from springtide.embeddings.collection import open_tables
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from springtide.kernels.cuda.ops import CudaOps
from tests.app.training.device_learners import (
    BATCH_SIZE,
    BATCHES,
    BROKEN,
    TABLE,
    assert_same,
    by_autograd,
    learned,
    learner_on,
)
from tests.app.training.random_clicks import RANDOM_CLICKS, SCHEMA, make_batch
from tests.support.config import config_in
from tests.support.gpu_emulation.device_array import waits
from tests.support.gpu_emulation.emulated_ops import device_of as device_of_tests
from tests.support.gpu_emulation.transfer_stream import emulated_device
from tests.support.learned_log import LearnedLog


def wide_learner_on(
    place: TrainDevice | None, *, crosses: int = 64, optimizer: str = "rowwise-adagrad", min_count: int = 1
) -> Learner:
    settings = structs.replace(
        TABLE, device_bytes="64MiB", optimizer={"name": optimizer, "lr": 0.05}, admission={"min_count": min_count}
    )
    rows_on = None if place is None else place.table

    def make(name, own, admission):
        ops = backend("cpu") if rows_on is None or name == CROSSES_TABLE else rows_on
        return EmbeddingTable(with_adagrad_eps(own), seed=0, tracked=False, device=ops, admission=admission)

    table = open_tables(with_wide_rows(settings, SCHEMA, crosses=crosses > 0), backend("cpu"), make)
    config = ModelConfig(name="dlrm", wide=True, crosses=crosses)
    net = build_model(config, ModelSpec.of(SCHEMA, TABLE.dim), seed=0)
    add_wide_part(net, config, SCHEMA)
    return by_autograd(Learner(net, table, TrainConfig(batch_size=BATCH_SIZE), SCHEMA, device=place))


@pytest.mark.parametrize("crosses", [64, 3, 0])
@pytest.mark.parametrize("optimizer", ["rowwise-adagrad", "adam"])
def test_the_wide_part_learns_on_the_host_what_it_learns_there_without_a_device(crosses, optimizer) -> None:
    """Every bit of what is the host's alone; rows that a device steps too are as close as its sums."""
    emulated = CudaOps(device_of_tests("host"), late=True)
    place = emulated_device()._replace(table=emulated)
    host, there = (wide_learner_on(one, crosses=crosses, optimizer=optimizer, min_count=2) for one in (None, place))
    batches = [make_batch(number, samples) for number, samples in enumerate([32, 300, 600, 9, 32, 0, 32, 1])]
    for mine, other in zip(learned(there, batches), learned(host, batches), strict=True):
        np.testing.assert_allclose(mine.logits_NL, other.logits_NL, rtol=1e-4, atol=1e-5)
    assert_same(there, host, rtol=1e-4, atol=1e-5)
    mine, other = ({name: table.export() for name, table in one.table.tables.items()} for one in (there, host))
    for name, rows in other.items():
        assert len(rows) > 50
        order, own = (np.lexsort((one.id, one.feature)) for one in (rows, mine[name]))
        for column in ("feature", "id", "count"):
            np.testing.assert_array_equal(getattr(mine[name], column)[own], getattr(rows, column)[order])
        for column in ("value", "state"):
            np.testing.assert_allclose(
                getattr(mine[name], column)[own], getattr(rows, column)[order], rtol=1e-3, atol=1e-5
            )


def test_beside_the_net_a_step_waits_for_the_device_once_more() -> None:
    """For the rows; the logits of the net, for which it waits too, are torch's."""
    learners = []
    for make in (learner_on, wide_learner_on):
        emulated = CudaOps(device_of_tests("host"), late=True)
        learners.append(make(emulated_device()._replace(table=emulated)))
    counted = []
    for learner in learners:
        learned(learner, BATCHES[:3] * 2)  # the same keys again: all of them have rows
        before = waits[0]
        learned(learner, BATCHES[:3])
        counted.append(waits[0] - before)
    assert counted[1] <= counted[0] + 3


def test_a_wide_part_goes_nowhere_with_its_net() -> None:
    net = build_model(ModelConfig(name="dlrm"), ModelSpec.of(SCHEMA, TABLE.dim), seed=0)
    add_wide_part(net, ModelConfig(name="dlrm", wide=True), SCHEMA)
    arrays = net.wide.arrays
    net.to(torch.device("meta"))
    assert next(net.parameters()).device.type == "meta"
    assert net.half().wide.base_L.dtype == torch.float64
    assert all(
        np.shares_memory(array, getattr(net.wide.arrays, name)) for name, array in arrays.named().items() if array.size
    )


def test_a_cuda_graph_cannot_hold_the_wide_part() -> None:
    with pytest.raises(ValueError, match="no CUDA graph can hold"):
        wide_learner_on(emulated_device(captures=True))


def test_a_log_with_a_wide_part_can_continue_on_a_device_and_back_on_the_host(tmp_path, monkeypatch) -> None:
    states = {}
    for name, places in {"host": [None, None, None], "both": [None, True, None]}.items():
        config = config_in(tmp_path / name, RANDOM_CLICKS, {"table": {"device_bytes": "96KiB"}})  # rows leave memory
        for turn, there in enumerate(places):
            emulated = CudaOps(device_of_tests("host"), late=True)
            place = emulated_device()._replace(table=emulated) if there else TrainDevice()
            monkeypatch.setattr("springtide.app.training.bootstrap.resolve_device", lambda _, place=place: place)
            with LearnedLog(config) as made:
                state = made.state
                assert state.learner.table.tables[CROSSES_TABLE].ops.device == "cpu"
                for number in range(3 * turn, 3 * turn + 3):
                    state.learn(make_batch(number), next_batch=make_batch(number + 1))
                made.checkpoint()
                states[name] = state.base_arrays()
    for name, array in states["host"].items():
        np.testing.assert_allclose(states["both"][name], array, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("run_inline", [True, False])
@pytest.mark.parametrize("batches", [BATCHES, BROKEN], ids=["finite", "overflow"])
def test_a_net_on_a_device_over_rows_of_the_host_learns_every_bit_with_the_wide_part(batches, run_inline) -> None:
    host, late = (wide_learner_on(place) for place in (None, emulated_device(run_inline=run_inline)))
    for mine, other in zip(learned(late, batches), learned(host, batches), strict=True):
        np.testing.assert_array_equal(mine.logits_NL, other.logits_NL)
    assert late.skipped_steps == host.skipped_steps
    assert_same(late, host)
