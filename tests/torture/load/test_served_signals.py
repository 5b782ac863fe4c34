"""A short run; `make torture` runs an hour."""

from pathlib import Path

from tests.support.process_pool import ProcessPool
from tests.torture.load.served_signals import ServedSignals

SECONDS, KILL_SECONDS = 8.0, 4.0


def test_what_was_served_is_what_is_trained_while_the_trainer_is_killed(
    tmp_path: Path, process_pool: ProcessPool
) -> None:
    served = ServedSignals(tmp_path, 5, process_pool)
    try:
        served.run(SECONDS, KILL_SECONDS)
        check = served.require_equal()
        assert served.num_kills == 1
        assert check.equal > 0
    except BaseException:
        print(served.output())
        raise
    finally:
        served.close()
