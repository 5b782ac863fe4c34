"""Each line of the table in deploy/docs/changing-settings.md, on a log that a trainer has written."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from springtide.app.config.load import Config
from springtide.app.training.bootstrap import new_model
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.initial_values import initial_values
from tests.app.training.random_clicks import RANDOM_CLICKS
from tests.support.config import Section, config_in
from tests.support.learned_log import LearnedLog
from tests.torture.verify.log_contents import LogContents, read_log_contents

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "deploy" / "docs" / "changing-settings.md").read_text()
WINDOW = 100
SETTINGS = """
[schema]
labels = ["click"]
request = "request"
[scores]
group = "item_id"
group_bytes = "256KiB"
[features.genres]
max_length = 40
[table]
admission = { min_count = 2, sketch_bytes = "64KiB" }
[model]
name = "logistic"
wide = false
[train]
window_samples = 100
"""
LAYERS = RANDOM_CLICKS, {"schema": {"label": None}}, SETTINGS
WITHOUT_GENRES = {"schema": {"multi_value": None}, "features": {"genres": None}}


def train(**keys: object) -> Section:
    return {"train": keys}


def table(**keys: object) -> Section:
    return {"table": keys}


def schema(**keys: object) -> Section:
    return {"schema": keys}


def genres(**keys: object) -> Section:
    return {"features": {"genres": keys}}


def click(**keys: object) -> Section:
    return {"labels": {"click": keys}}


EDITS = {
    ("[schema] categorical", "one added"): schema(categorical=["user_id", "item_id", "new"]),
    ("[schema] categorical", "one removed"): schema(categorical=["item_id"]),
    ("[schema] categorical", "two swapped"): schema(categorical=["item_id", "user_id"]),
    ("[schema] categorical", "now a list"): schema(categorical=["item_id"], multi_value=["genres", "user_id"]),
    ("[schema] multi_value", "one added"): schema(multi_value=["genres", "new"]),
    ("[schema] multi_value", "one removed"): WITHOUT_GENRES,
    ("[schema] sequence", "one added"): schema(sequence=["last_items", "new"]),
    ("[schema] sequence", "one removed"): schema(sequence=None, share=None),
    ("[schema] dense", "one added"): schema(dense=["age", "price", "new"]),
    ("[schema] dense", "one removed"): schema(dense=["age"]),
    ("[schema] labels", "one added"): schema(labels=["click", "new"]),
    ("[schema] labels", "one replaced"): schema(labels=["new"]),
    ("[schema] share", "no longer shared"): schema(share=None),
    ("[schema] share", "now shared"): schema(share={"last_items": "item_id", "genres": "item_id"}),
    ("[schema] timestamp", "another field"): schema(timestamp="time"),
    ("[schema] weight", "another field"): schema(weight=None),
    ("[features.*] max_length", "another value"): genres(max_length=30),
    ("[features.*] pooling", "another value"): genres(pooling="sum"),
    ("[features.*] weighted", "now true"): genres(weighted=True),
    ("[features.*] ttl_seconds", "another value"): genres(ttl_seconds=1e9),
    ("[features.*] quota_bytes", "another value"): genres(quota_bytes="1MiB"),
    ("[features.*] admission", "another value"): genres(admission={"min_count": 3}),
    ("[table] dim", "another value"): table(dim=6),
    ("[table] optimizer", "another name"): table(optimizer={"name": "adam"}),
    ("[table] optimizer", "another lr"): table(optimizer={"lr": 0.1}),
    ("[table] dtype", "another value"): table(dtype="bfloat16"),
    ("[table] init_scale", "another value"): table(init_scale=0.5),
    ("[train] seed", "another value"): train(seed=3),
    ("[train] optimizer", "another name"): train(optimizer={"name": "sgd", "lr": 0.01}),
    ("[train] optimizer", "another lr"): train(optimizer={"lr": 0.01}),
    ("[train] lr_schedule", "another value"): train(lr_schedule={"warmup_samples": 1000}),
    ("[train] clip_norm", "another value"): train(clip_norm=0.1),
    ("[train] batch_growth", "another value"): train(batch_growth=64),
    ("[train] accumulate_batches", "another value"): train(accumulate_batches=2),
    ("[train] ema_half_life_samples", "another value"): train(ema_half_life_samples=1000),
    ("[train] loss", "another value"): train(loss="focal"),
    ("[train] task_weights", "another value"): train(task_weights="uncertainty"),
    ("[labels.*] loss", "another value"): click(loss="pairwise"),
    ("[labels.*] loss", "now a value"): click(loss="huber"),
    ("[labels.*] weight", "another value"): click(weight=2),
    ("[model] name", "another net"): {"model": {"name": "dlrm"}},
    ("[serve] range", "another value"): {"serve": {"range": "1/2"}},
    ("[model] options", "other values"): {"model": {"options": {"top": [32]}}},
}
FROM_DLRM = [("[model] options", "other values")]


def table_lines() -> dict[tuple[str, str], tuple[list[str], ...]]:
    """Return what each line of the page's table keeps, begins and drops."""
    found = {}
    for line in re.findall(r"^\| `(.+?)` \| (.+?) \|(.*?)\|(.*?)\|(.*?)\|$", PAGE, re.MULTILINE):
        found[line[0], line[1]] = tuple([text.strip() for text in cell.split(",") if text.strip()] for cell in line[2:])
    return found


LINES = table_lines()


def learn(config: Config) -> None:
    """Start a trainer's state, learn a little of what the schema takes, and end."""
    with LearnedLog(config) as made:
        made.learn(range(4))


def contents(config: Config) -> LogContents:
    return read_log_contents(config.log.path, window_samples=WINDOW)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Return the folder of a log with this net, made once."""
    made: dict[str, Path] = {}

    def make(net: str) -> Path:
        if net not in made:
            made[net] = folder = tmp_path_factory.mktemp(net)
            learn(config_in(folder, *LAYERS, {"model": {"name": net}}))
        return made[net]

    return make


def test_the_page_has_a_line_for_each_case_here() -> None:
    assert sorted(LINES) == sorted(EDITS)


@pytest.mark.parametrize("case", EDITS, ids=lambda case: f"{case[0]}, {case[1]}")
def test_a_change_keeps_begins_and_drops_what_the_page_says(case, learned, tmp_path) -> None:
    model = {"model": {"name": "dlrm" if case in FROM_DLRM else "logistic"}}
    shutil.copytree(learned(model["model"]["name"]), tmp_path, dirs_exist_ok=True)
    before = config_in(tmp_path, *LAYERS, model)
    then = contents(before)
    config = config_in(tmp_path, *LAYERS, model, EDITS[case])
    with LearnedLog(config) as started:
        epoch, samples = started.log.epoch, started.state.samples_trained
    now, kept = contents(config), LINES[case][0]
    assert samples == then.meta.samples_trained == now.meta.samples_trained
    assert now.meta.positions == then.meta.positions
    assert now.meta.event_clock_ms == then.meta.event_clock_ms
    assert (now.sketch, now.meta.sketch_age) == (then.sketch, then.meta.sketch_age)
    if kept == ["everything"]:
        assert now.head == then.head
        assert now.rows == then.rows
        return
    assert now.head.number == epoch << 32
    assert now.meta.change["from"] == then.head.number
    check = Check(before, config, then, now)
    for group, things in zip(("keeps", "begins", "drops"), LINES[case], strict=True):
        for thing in things:
            getattr(check, f"{group}_{thing.replace(' ', '_')}")()
    check.everything_is_said(LINES[case])
    directory = LogDirectory(config.log.path)
    assert directory.newest_schema() == config.schema
    LearnedLog(config).end()  # the next start has nothing to change
    assert contents(config).head == now.head


class Check:
    """A method for each phrase of the table."""

    def __init__(self, before: Config, after: Config, then: LogContents, now: LogContents) -> None:
        self.before, self.after, self.then, self.now = before, after, then, now
        old, new = before.schema.owner_names(), after.schema.owner_names()
        self.common = old.keys() & new.keys()
        self.added, self.removed = new.keys() - old.keys(), old.keys() - new.keys()
        self.old_rows = {key: row for key, row in then.rows.items() if key[0] % 32768 in self.common}
        net = new_model(after)
        self.fresh = {f"dense.{name}": value.detach().numpy() for name, value in net.state_dict().items()}
        self.fitting = {
            name for name, array in self.fresh.items() if name in then.arrays and then.arrays[name].shape == array.shape
        }

    def everything_is_said(self, line: tuple[list[str], ...]) -> None:
        """Nothing is dropped, begun or kept that the line leaves out."""
        assert self.now.rows.keys() == self.old_rows.keys()
        assert bool(self.removed) == ("rows of the removed one" in line[2])
        assert bool(self.added) == ("rows of the new one" in line[1])
        assert self.fresh.keys() == {name for name in self.now.arrays if name.startswith("dense.")}
        expected = {"net", "parameters", "fitting parameters"} if "net" not in line[1] else {"net"}
        assert expected & {*line[0], *line[1]}

    def keeps_rows(self) -> None:
        assert len(self.old_rows) > 5
        assert self.now.rows == self.old_rows

    def keeps_vectors(self) -> None:
        now = {key: row[0] for key, row in self.now.rows.items()}
        assert now == {key: row[0] for key, row in self.old_rows.items()}

    def keeps_counts(self) -> None:
        assert {key: row[2:] for key, row in self.now.rows.items()} == {
            key: row[2:] for key, row in self.old_rows.items()
        }

    def begins_vectors(self) -> None:
        table = self.after.table
        for (feature, row_id), row in self.now.rows.items():
            first = initial_values(
                np.array([feature], np.uint16),
                np.array([row_id]),
                dim=table.dim,
                seed=self.after.train.seed,
                scale=table.init_scale,
            )
            assert row[0] == first.tobytes()

    def begins_states(self) -> None:
        assert not any(any(row[1]) for row in self.now.rows.values())

    def begins_rows_of_the_new_one(self) -> None:
        (number,) = self.added
        assert number >= self.before.schema.unused_number
        assert not any(key[0] == number for key in self.now.rows)

    def drops_rows_of_the_removed_one(self) -> None:
        (number,) = self.removed
        assert any(key[0] == number for key in self.then.rows)
        assert number not in self.after.schema.owner_names()
        assert not any(key[0] % 32768 == number for key in self.now.rows)

    def keeps_net(self) -> None:
        assert self.fitting == self.fresh.keys()
        self.keeps_fitting_parameters()

    def keeps_parameters(self) -> None:
        for name in self.fitting:
            assert self.now.arrays[name].tobytes() == self.then.arrays[name].tobytes(), name

    def keeps_fitting_parameters(self) -> None:
        self.keeps_parameters()
        state = {name for name in self.then.arrays if name.startswith("state.optimizer.")}
        kept = {name for name in state if f"dense.{name[16:].rpartition('.')[0]}" in self.fitting}
        assert {name for name in self.now.arrays if name.startswith("state.optimizer.")} == kept
        for name in kept:
            assert self.now.arrays[name].tobytes() == self.then.arrays[name].tobytes(), name

    def begins_other_parameters(self) -> None:
        for name in self.fresh.keys() - self.fitting:
            assert self.now.arrays[name].tobytes() == self.fresh[name].tobytes(), name

    def begins_net(self) -> None:
        for name, array in self.fresh.items():
            assert self.now.arrays[name].tobytes() == array.tobytes(), name
        self.begins_dense_state()

    def begins_dense_state(self) -> None:
        assert any(name.startswith("state.optimizer.") for name in self.then.arrays)
        assert not any(name.startswith("state.optimizer.") for name in self.now.arrays)

    def keeps_scores(self) -> None:
        assert self.now.meta.scores
        for name in ("sums", "histogram.0.bins", "window.logits"):
            then, now = self.then.arrays[f"state.scores.{name}"], self.now.arrays[f"state.scores.{name}"]
            assert then.tobytes() == (now[:1] if name == "sums" else now[..., :1] if now.ndim == 2 else now).tobytes()

    def begins_scores(self) -> None:
        assert self.then.arrays["state.scores.sums"].any()
        assert not self.now.arrays["state.scores.sums"].any()
        assert np.isnan(self.now.arrays["state.scores.window.labels"]).all()

    def begins_scores_of_the_new_one(self) -> None:
        place = self.after.schema.labels.index("new")
        assert not self.now.arrays["state.scores.sums"][place].any()
        assert np.isnan(self.now.arrays["state.scores.window.labels"][:, place]).all()

    def drops_scores_of_the_removed_one(self) -> None:
        assert "click" not in self.after.schema.labels
        assert "click" not in str(self.now.meta.scores)
