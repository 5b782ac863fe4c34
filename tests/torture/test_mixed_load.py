"""A short mixed load; `make torture` is the long one."""

from pathlib import Path

from tests.torture.mixed_load import MixedLoad
from tests.torture.nursery import Nursery

SECONDS = 4.0


def test_under_mixed_load_every_answer_is_of_the_version_it_names(tmp_path: Path, nursery: Nursery) -> None:
    load = MixedLoad(tmp_path, 5, nursery)
    try:
        load.run(SECONDS, restart=False)
        assert (load.num_kills, load.num_restarts) == (2, 1)
        compared = load.judge.num_compared
        assert {"predict", "snapshot", "HotModel, directory", "HotModel, http"} <= set(compared), compared
        assert sum(compared.values()) > 50, compared
    except BaseException:
        print(load.said())
        raise
    finally:
        load.close()
