"""Python examples of the documentation that need no server run as printed; tests/e2e/test_readme.py runs the others."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.documents import ROOT, blocks


def run(text: str, names: dict[str, Any]) -> None:
    exec(compile(text, "example", "exec"), names)


def test_the_examples_of_dynamic_embedding_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = blocks(ROOT / "deploy/docs/dynamic-embedding.md", "python")
    assert len(examples) == 3
    names: dict[str, Any] = {"__name__": "example"}
    for example in examples:
        run(example, names)
    assert names["status"].tolist() == [0, 1]
    assert len(names["changed"]) == len({id_ for ids in names["batches"] for id_ in ids.tolist()})
    assert (tmp_path / "var/clicks").exists()
    names["emb"].close()
    assert (tmp_path / "clicks.pt").stat().st_size > 10_000
    names["model"].users.close()


def test_the_readmes_example_of_dynamic_embedding_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [example] = [text for text in blocks(ROOT / "README.md", "python") if "DynamicEmbedding" in text]
    names: dict[str, Any] = {"__name__": "example"}
    run(example, names)
    assert names["rows"].shape == (2, 2, 16)
    assert len(names["users"]) == 3
    names["users"].close()


def test_the_readmes_configuration_is_valid(tmp_path: Path) -> None:
    from springtide.app.config.load import load_config

    [text] = blocks(ROOT / "README.md", "toml")
    path = tmp_path / "springtide.toml"
    path.write_text(re.sub(r"\s+#.*", "", text))
    assert load_config(path).name == "shop"


def test_the_example_of_a_model_of_ones_own_is_checked_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from springtide.app.config.load import load_config
    from springtide.app.tools.diagnosis import check_model
    from springtide.app.training.bootstrap import state_without_log
    from tests.app.training.random_clicks import make_batch

    [code] = [block for block in blocks(ROOT / "deploy/docs/models.md", "python") if "AttentionRanker" in block]
    [text] = [block for block in blocks(ROOT / "deploy/docs/models.md", "toml") if "my_models" in block]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_models.py").write_text(code)
    (tmp_path / "springtide.toml").write_text(text + '[table]\ndevice_bytes = "16MiB"\n')
    config = load_config()
    assert [one.text for one in check_model(config)] == ["model: my_models:AttentionRanker"]
    state = state_without_log(config)
    before = {name: value.clone() for name, value in state.learner.model.state_dict().items()}
    state.learn(make_batch(0, schema=config.schema))
    state.finish_step()
    after = state.learner.model.state_dict()
    unchanged = [name for name in after if not name.startswith("wide.") and (after[name] == before[name]).all()]
    state.learner.table.close()
    assert not unchanged


def test_the_example_of_a_history_fits_its_configuration(tmp_path: Path) -> None:
    from springtide.app.config.load import load_config
    from springtide.app.tools.diagnosis import check_model
    from springtide_client.encode import encode_instances

    [code] = [block for block in blocks(ROOT / "deploy/docs/models.md", "python") if "history_gaps" in block]
    [text] = [block for block in blocks(ROOT / "deploy/docs/models.md", "toml") if "history_gaps" in block]
    (tmp_path / "springtide.toml").write_text(text)
    config = load_config(tmp_path / "springtide.toml")
    assert [one.text for one in check_model(config)] == ["model: transformer"]
    names: dict[str, Any] = {"__name__": "example"}
    run(code, names)
    assert [names["time_gap"](seconds) for seconds in (0.5, 3600, 86_400, 31_536_000)] == [0, 11, 16, 24]
    sent = names["record"](1, 2, 1_700_000_000_000, [(5, 1_699_999_996_000), (6, 1_699_999_999_500)])
    history, gaps = encode_instances(config.schema, [sent]).lists
    assert len(history.ids_M) == 2
    assert gaps.ids_M.tolist() == [2, 0]


def test_the_example_of_a_ranking_computed_again_is_the_answer_above_it() -> None:
    page = ROOT / "deploy/docs/exploration.md"
    [example], [answer] = blocks(page, "python"), map(json.loads, blocks(page, "json"))
    names: dict[str, Any] = {"__name__": "example"}
    run(example, names)
    order_N, propensities_P = names["ranking"]
    assert order_N[:2].tolist() == answer["order"] == [item["index"] for item in answer["items"]]
    assert [names["probabilities"][index] for index in answer["order"]] == [
        item["probability"] for item in answer["items"]
    ]
    assert propensities_P.round(4).tolist() == [answer["items"][0]["propensity"]]
    assert answer["policy"]["temperature"] == names["policy"].temperature
    assert [item["score"] for item in answer["items"]] == pytest.approx(
        names["scores_of"](names["probabilities"])[answer["order"]], abs=1e-4
    )
