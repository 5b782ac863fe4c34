"""What other policies would have earned: summed up as records are learned, through restarts and ranks, and in files."""

import json
from pathlib import Path

import numpy as np
import pytest

from springtide.app.scores.policy_value import PolicyValue
from springtide.app.tools.evaluate.report import evaluate_files
from springtide.app.training.trainer import Trainer
from springtide.stream.history.input_file import InputFile
from springtide.stream.kafka.producer import Producer
from springtide_client.explore import GREEDY, Policy, expected_reward, first_probabilities, rank
from tests.app.training.ranks.thread_trainers import on_trainers
from tests.app.training.trainer_env import TrainerEnv
from tests.support.waiting import DEADLINE_SECONDS

EXPLORED = {
    "schema": {"propensity": "p"},
    "policies": {
        "greedy": {"probability": "greedy_p", "predicted": "q", "value": "greedy_v"},
        "logged": {"probability": "p"},
    },
}
TRUTH = np.array([0.2, 0.6, 0.3])
SCORES = np.array([0.1, 0.9, 0.2])
POLICY = Policy(name="epsilon", epsilon=0.5)


def explored(num: int, first: int = 0) -> list[dict]:
    """Records of answers of /v1/rank, one shown item each; those of second places bring no propensity."""
    rng, rows = np.random.default_rng(first), []
    predicted = 1 / (1 + np.exp(-SCORES))
    for n in range(first, first + num):
        ranking = rank(SCORES, f"r{n}", 1, POLICY)
        for place, item in enumerate(ranking.order_N[:2].tolist()):
            row = {"user_id": n % 37, "item_id": f"item {item}", "age": 3, "ts": 1_700_000_000_000 + n}
            row["click"] = int(rng.random() < TRUTH[item])
            if place == 0:
                greedy = first_probabilities(SCORES, GREEDY)
                row |= {"p": float(ranking.propensities_P[0]), "q": float(predicted[item])}
                row |= {"greedy_p": float(greedy[item]), "greedy_v": float(expected_reward(greedy, predicted))}
            rows.append(row)
    return rows


def send(env: TrainerEnv, rows: list[dict], *, partition: int = 0) -> None:
    with Producer(env.kafka) as producer:
        for row in rows:
            producer.send("clicks", json.dumps(row).encode(), partition=partition)
        producer.flush(DEADLINE_SECONDS)


def expected(rows: list[dict]) -> dict:
    shown = [row for row in rows if "p" in row]
    names = ("click", "p", "greedy_p", "q", "greedy_v")
    columns = [np.array([row[name] for row in shown], np.float32).astype(np.float64) for name in names]
    return PolicyValue().observe(*columns).document()


def test_a_restart_goes_on_with_the_same_sums(env: TrainerEnv) -> None:
    rows = explored(300)
    env.configure(EXPLORED)
    env.create()
    send(env, rows[:200])
    Trainer(env.config, until_end=True).run()
    send(env, rows[200:])
    status = Trainer(env.config, until_end=True).run()
    assert status.samples_trained == 600
    greedy, logged = status.scores.policies["greedy"], status.scores.policies["logged"]
    for name, value in expected(rows).items():
        assert getattr(greedy.whole, name) == value, name
    assert greedy.window == greedy.whole
    assert abs(greedy.whole.ips - TRUTH[1]) < 4 * greedy.whole.ips_error
    assert logged.whole.ips == pytest.approx(logged.whole.logged)
    assert logged.whole.mean_weight == 1
    assert logged.whole.dr is None


def test_two_ranks_know_the_requests_of_both(env: TrainerEnv) -> None:
    rows, more = explored(120), explored(90, 500)
    env.configure(EXPLORED)
    env.create(partitions=2)
    send(env, rows)
    send(env, more, partition=1)
    status, _ = on_trainers(env, 2, until_end=True)
    found = status.scores.policies["greedy"].whole
    for name, value in expected(rows + more).items():
        assert getattr(found, name) == pytest.approx(value), name


def test_files_say_it_too(env: TrainerEnv, tmp_path: Path) -> None:
    rows = explored(200)
    env.configure(EXPLORED)
    file = tmp_path / "explored.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = evaluate_files([InputFile(file)], env.path)
    assert result.policies["greedy"]["whole"] == expected(rows)
    lines = [line for line in result.lines() if "policy" in line]
    assert lines[0].startswith("policy greedy, 200 requests, which have earned 0.")
