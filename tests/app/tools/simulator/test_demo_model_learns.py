"""The demo's model learns the simulated interactions within a minute's worth of clicks."""

import msgspec
import numpy as np

from springtide.app.config.load import load_config
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.scores.auc import click_auc
from springtide.app.tools.demo.demo import demo_config_path
from springtide.app.tools.simulator.click_generator import ClickGenerator
from springtide.app.tools.simulator.config import SimulatorConfig
from springtide.app.training.config import with_adagrad_eps
from springtide.app.training.step.learner import Learner
from springtide.embeddings.table import EmbeddingTable
from springtide.stream.columns import Batch
from springtide_client.encode import encode_instances

NUM_SAMPLES, WINDOW = 60_000, 20_000


def test_the_demo_model_gets_three_quarters_of_the_way_to_the_best_auc_in_60_000_samples() -> None:
    config = load_config(demo_config_path())
    table = EmbeddingTable(with_adagrad_eps(config.table), seed=0)
    model = build_model(config.model, ModelSpec.of(config.schema, config.table.dim), seed=0)
    learner = Learner(model, table, config.train, config.schema)
    simulator = ClickGenerator(SimulatorConfig(), start_ms=1_795_000_000_000)
    logits, clicks, chances = [], [], []
    for _ in range(NUM_SAMPLES // simulator.CHUNK):
        chunk = simulator.take_chunk()
        records = [msgspec.json.decode(message) for message in chunk.to_json()]
        batch = Batch(
            features=encode_instances(config.schema, records),
            labels_NL=chunk.click_N[:, None].astype(np.float32),
            weights_N=np.ones(len(chunk), np.float32),
            event_ms_N=chunk.ts_N,
            record_ms_N=chunk.ts_N,
            positions={},
        )
        if learner.needs_checkpoint(batch):
            table.take_delta()
        logits.append(learner.step(batch).logits_NL[:, 0])
        clicks.append(chunk.click_N)
        chances.append(chunk.impressions.probability_N)
    labels_N = np.concatenate(clicks)[-WINDOW:]
    best = click_auc(np.concatenate(chances)[-WINDOW:], labels_N)
    learned = click_auc(np.concatenate(logits)[-WINDOW:], labels_N)
    assert best is not None
    assert learned is not None
    assert learned - 0.5 >= 0.75 * (best - 0.5)
    table.close()
