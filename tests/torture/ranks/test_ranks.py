"""A short torture of two ranks; `make torture` runs the long one."""

from pathlib import Path

from tests.support.process_pool import ProcessPool
from tests.torture.ranks.torture import RankTorture


def test_after_a_power_loss_between_shard_records_and_their_version_every_id_is_counted_as_often_as_it_was_sent(
    tmp_path: Path, process_pool: ProcessPool
) -> None:
    lines: list[str] = []
    torture = RankTorture(tmp_path, 16, process_pool, max_ranks=2, report=lines.append)
    try:
        torture.inject(torture.lose_power)
        torture.finish()
        assert torture.comparison.num_logs >= 1
        assert torture.cluster.watcher.num_compared > 0
    finally:
        torture.close()
        print("\n".join(lines))
