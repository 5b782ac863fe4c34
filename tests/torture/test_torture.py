"""A short torture; `make torture` runs the long one."""

from pathlib import Path

from tests.support.process_pool import ProcessPool
from tests.torture.clicks import NUM_USERS
from tests.torture.torture import Torture

NUM_KILLS, NUM_PACED_KILLS = 8, 4


def test_after_kills_and_a_power_loss_the_state_is_bitwise_that_of_an_undisturbed_run(
    tmp_path: Path, process_pool: ProcessPool
) -> None:
    lines: list[str] = []
    torture = Torture(tmp_path, 11, process_pool, report=lines.append)
    try:
        for kind in (torture.faults.lose_power, torture.faults.kill_at_fault_point, torture.faults.replace_trainer):
            torture.inject(kind)
        torture.run(NUM_KILLS)
        assert torture.verifier.num_compared >= 1
        assert torture.verifier.num_rows > NUM_USERS
        assert torture.verifier.num_restored > 0
    finally:
        torture.close()
        print("\n".join(lines))


def test_so_it_is_where_the_dense_net_has_a_pace_of_its_own(tmp_path: Path, process_pool: ProcessPool) -> None:
    lines: list[str] = []
    torture = Torture(tmp_path, 12, process_pool, report=lines.append)
    try:
        torture.run(NUM_PACED_KILLS)
        assert torture.verifier.num_compared >= 1
    finally:
        torture.close()
        print("\n".join(lines))
