from numba.core import event

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.models.wide_part import add_wide_part
from springtide.app.training.bootstrap import with_wide_rows
from springtide.app.training.compile_kernels import compile_kernels
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.step.learner import Learner
from springtide.embeddings.collection import open_tables
from springtide.embeddings.config import TableConfig
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from tests.app.training.random_clicks import SCHEMA, make_batch


def test_after_it_the_first_batches_wait_for_no_compiler() -> None:
    compile_kernels([16])
    table = open_tables(
        with_wide_rows(TableConfig(device_bytes="4MiB"), SCHEMA, crosses=True),
        backend("cpu"),
        lambda name, own, admission: EmbeddingTable(with_adagrad_eps(own), seed=0, admission=admission),
    )
    config = ModelConfig(wide=True)
    model = build_model(config, ModelSpec.of(SCHEMA, table.dim), seed=0)
    add_wide_part(model, config, SCHEMA)
    learner = Learner(model, table, TrainConfig(), SCHEMA)
    with event.install_recorder("numba:compile") as recorder:
        for number in range(3):
            learner.step(make_batch(number))
    table.close()
    assert [str(happened.data["dispatcher"]) for _, happened in recorder.buffer] == []
