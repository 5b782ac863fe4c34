"""Where ranks learn: a site whose topic has partitions, and a follower that compares what is published."""

from pathlib import Path

from tests.support.config import Section
from tests.support.process_pool import ProcessPool
from tests.torture.cluster.site import Site
from tests.torture.ranks.sent import Sent
from tests.torture.ranks.watcher import Watcher

PARTITIONS, TIMEOUT_SECONDS = 5, 6
SETTINGS: Section = {
    "train": {"batch_size": 32, "min_batch_size": 0, "max_wait_seconds": 0.05},
    "cluster": {"timeout_seconds": TIMEOUT_SECONDS},
}


class RankSite(Site):
    """`sent`: what was sent to each partition."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        process_pool: ProcessPool | None = None,
        *,
        partitions: int = PARTITIONS,
        address: str = "127.0.0.1",
    ) -> None:
        super().__init__(folder, process_pool, SETTINGS, partitions=partitions, address=address)
        self.sent = Sent(seed, partitions)
        self.watcher = Watcher(self.log, self.sent)

    def produce(self, number: int, partition: int) -> None:
        """Send so many records to a partition."""
        self.send([self.sent.next_value(partition) for _ in range(number)], partition)

    def close(self) -> None:
        self.watcher.close()
        super().close()
