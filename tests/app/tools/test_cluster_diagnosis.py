"""`springtide check` says what several ranks would exchange, and when only one can learn a model."""

from springtide.app.config.load import load_config
from springtide.app.tools.cluster_diagnosis import check_cluster

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


def test_a_rank_needs_a_gpu_of_its_own(tmp_path, monkeypatch):
    on_gpu = '[train]\ndevice = "cuda"\n'
    for num_gpus, nccl, found in [
        (1, True, ("note", "torch sees 1 here, and has NCCL")),
        (2, False, ("note", "torch sees 2 here, and lacks NCCL")),
        (4, True, ("ok", "up to 4 ranks (`springtide train --ranks R`), one for each GPU, would exchange rows as")),
    ]:
        monkeypatch.setattr("torch.cuda.device_count", lambda num_gpus=num_gpus: num_gpus)
        monkeypatch.setattr("springtide.app.tools.cluster_diagnosis.is_nccl_available", lambda nccl=nccl: nccl)
        state, text = check(tmp_path, on_gpu)
        assert state == found[0]
        assert found[1] in text
    state, text = check(tmp_path, on_gpu + "cuda_graphs = true\n")
    assert (state, "cuda_graphs does not go with several" in text) == ("note", True)
