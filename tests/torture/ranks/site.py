"""Where ranks learn: a broker with a topic, a disk with the log, and a follower that compares what is published."""

from pathlib import Path

from springtide.app.version_log.trainer_status import TrainerStatus, read_status
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from tests.torture.cluster.faulty_broker import FaultyBroker
from tests.torture.ranks.sent import Sent
from tests.torture.ranks.watcher import Watcher

TOPIC, PARTITIONS, TIMEOUT_SECONDS = "clicks", 5, 6
CONFIG = """
name = "torture"
[source]
topic = "{topic}"
bootstrap_servers = "{address}"
[schema]
label = "click"
timestamp = "ts"
categorical = ["user_id", "item_id"]
sequence = ["last_items"]
dense = ["age"]
share = {{ last_items = "item_id" }}
[table]
dim = 8
device_bytes = "1104KiB"
disk_path = "{folder}/spill"
[model]
name = "dlrm"
wide = true
crosses = 4
[train]
batch_size = 32
min_batch_size = 0
max_wait_seconds = 0.05
threads = 1
[scores]
by = ["user_id"]
segment_bytes = "2MiB"
[log]
path = "{folder}/disk/log"
publish_seconds = 0.05
durable_seconds = 0.15
base_minutes = 0.03
onnx = false
[cluster]
timeout_seconds = {timeout}
"""


class Site:
    """`address`: of the host on which the broker listens."""

    def __init__(self, folder: Path, seed: int, *, partitions: int = PARTITIONS, address: str = "127.0.0.1") -> None:
        self.folder, self.partitions = folder, partitions
        (folder / "disk").mkdir()
        self.broker, self.log = FaultyBroker(address), folder / "disk" / "log"
        self.config = folder / "springtide.toml"
        text = CONFIG.format(topic=TOPIC, address=self.broker.address, folder=folder, timeout=TIMEOUT_SECONDS)
        self.config.write_text(text)
        kafka = KafkaConfig(bootstrap_servers=self.broker.address)
        with Admin(kafka, patient=True) as admin:
            admin.ensure_topic(TOPIC, num_partitions=partitions)
        self._producer = Producer(kafka, patient=True)
        self.sent = Sent(seed, partitions)
        self.watcher = Watcher(self.log, self.sent)

    def produce(self, number: int, partition: int) -> None:
        """Send so many records to a partition."""
        for _ in range(number):
            self._producer.send(TOPIC, self.sent.next_value(partition), partition=partition)
        self._producer.flush()

    def status(self) -> TrainerStatus:
        return read_status(self.log) or TrainerStatus()

    def close(self) -> None:
        self.watcher.close()
        self._producer.close()
        self.broker.close()
