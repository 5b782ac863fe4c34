"""Apache Kafka is frozen, killed and cut off under one trainer; `tests/torture/broker_faults.py` has the long form."""

from pathlib import Path

from tests.support.broker import apache_only
from tests.support.process_pool import ProcessPool
from tests.torture.broker_faults import TroubledTrainer, play


@apache_only
def test_a_trainer_lives_through_a_frozen_a_killed_and_an_unreachable_node(
    tmp_path: Path, process_pool: ProcessPool
) -> None:
    trainer = TroubledTrainer(tmp_path, process_pool)
    try:
        play(trainer, frozen_seconds=8.0, kills=2, cut_seconds=4.0, report=print)
        trainer.check_counts()
    finally:
        trainer.close()
