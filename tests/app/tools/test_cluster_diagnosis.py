"""`springtide check` says what several ranks would exchange, and when only one can learn a model."""

from app.config.load import load_config
from app.tools.cluster_diagnosis import check_cluster

CONFIG = """
name = "shop"
[schema]
label = "click"
categorical = ["user_id", "item_id"]
"""


def check(tmp_path, text: str) -> tuple[str, str]:
    path = tmp_path / "springtide.toml"
    path.write_text(CONFIG + text)
    return check_cluster(load_config(path))


def test_formats_and_the_time_after_which_a_rank_is_dead_are_told(tmp_path):
    state, text = check(tmp_path, '[cluster]\nrows = "int8"\ntimeout_seconds = 5\n')
    assert state == "ok"
    assert "rows as int8, gradients as float32" in text
    assert text.endswith("silent for 5 s counts as dead")


def test_what_only_one_rank_can_learn_is_noted(tmp_path):
    state, text = check(tmp_path, '[train]\ndevice = "cuda"\n')
    assert state == "note"
    assert "only one rank can learn on a GPU" in text
