"""Simulated clicks are repeatable, and predictable by interactions but hardly by single fields."""

import json
from collections import defaultdict

import msgspec
import numpy as np
import pytest

from springtide.app.config.load import load_config
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.scores.auc import click_auc
from springtide.app.tools.demo import demo_config_path
from springtide.app.tools.simulated_world import SimulatorConfig
from springtide.app.tools.simulator import ClickGenerator, Clicks
from springtide.app.training.config import with_adagrad_eps
from springtide.app.training.step.learner import Learner
from springtide.embeddings.table import EmbeddingTable
from springtide_client.encode import encode_instances
from tests.support.batches import batch_of

START_MS = 1_795_000_000_000
FIELDS = ("user_id", "item_id", "segment", "country", "device", "placement", "category", "publisher")


def take(num_chunks: int, **settings: float) -> list[Clicks]:
    simulator = ClickGenerator(SimulatorConfig(**settings), start_ms=START_MS)
    return [simulator.take_chunk() for _ in range(num_chunks)]


def probabilities(chunks: list[Clicks]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.concatenate([chunk.impressions.probability_N for chunk in chunks]),
        np.concatenate([chunk.click_N for chunk in chunks]),
    )


def naive_bayes_scores(records: list[dict]) -> np.ndarray:
    """Each record scored before it is counted: a smoothed rate per field and value, summed as log-odds."""
    counts = {field: defaultdict(lambda: [0, 0]) for field in FIELDS}
    num_clicks, scores = 0, np.empty(len(records))
    for n, record in enumerate(records):
        base = (num_clicks + 1) / (n + 4)
        base_logit = np.log(base / (1 - base))
        score = base_logit
        for field in FIELDS:
            seen = counts[field][record[field]]
            rate = (seen[0] + 20 * base) / (seen[1] + 20)
            score += np.log(rate / (1 - rate)) - base_logit
            seen[0] += record["click"]
            seen[1] += 1
        scores[n] = score
        num_clicks += record["click"]
    return scores


def test_clicks_are_a_function_of_seed_and_start() -> None:
    first, again, other = (b"".join(take(3, seed=seed)[2].to_json()) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_a_click_is_one_json_object_with_every_field() -> None:
    record = json.loads(take(1)[0].to_json()[0])
    assert set(record) == {*FIELDS, "ts", "click", "tags", "price", "item_age_hours"}
    assert record["ts"] == START_MS
    assert record["click"] in (0, 1)
    assert 1 <= len(record["tags"]) <= 3


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_best_reachable_auc_is_between_078_and_085(seed: int) -> None:
    for minute in (0, 5):
        simulator = ClickGenerator(SimulatorConfig(seed=seed), start_ms=START_MS + minute * 60_000)
        best = click_auc(*probabilities([simulator.take_chunk() for _ in range(300)]))
        assert 0.78 <= best <= 0.85


def test_a_per_field_naive_bayes_gets_at_most_half_of_the_way_to_the_best_auc() -> None:
    chunks = take(400)
    records = [json.loads(line) for chunk in chunks for line in chunk.to_json()]
    clicked = np.array([record["click"] for record in records], dtype=bool)
    scores, best = naive_bayes_scores(records), click_auc(*probabilities(chunks))
    assert click_auc(scores, clicked) - 0.5 <= 0.5 * (best - 0.5)
    assert click_auc(scores[-20_000:], clicked[-20_000:]) - 0.5 <= 0.5 * (best - 0.5)


def test_users_are_zipf_distributed() -> None:
    users = np.concatenate([chunk.impressions.user_N for chunk in take(300)])
    counts = np.bincount(users, minlength=100_000)
    assert counts[:100].sum() > 0.15 * len(users)
    assert np.count_nonzero(counts) > 10_000


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
        batch = batch_of(encode_instances(config.schema, records), chunk.click_N, chunk.ts_N)
        if learner.count_keys(batch).need_checkpoint:
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
