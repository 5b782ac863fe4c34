"""A short mixed load; `make torture` runs the long one."""

from pathlib import Path

from tests.support.process_pool import ProcessPool
from tests.torture.load.mixed_load import REQUEST_KINDS, MixedLoad

SECONDS = 3.0


def test_every_response_under_load_matches_the_version_it_names(tmp_path: Path, process_pool: ProcessPool) -> None:
    load = MixedLoad(tmp_path, 5, process_pool, workers=1)
    try:
        load.run(SECONDS)
        assert (load.num_kills, load.num_restarts) == (2, 1)
        assert load.verifier.num_compared.keys() == REQUEST_KINDS
    except BaseException:
        print(load.output())
        raise
    finally:
        load.close()
