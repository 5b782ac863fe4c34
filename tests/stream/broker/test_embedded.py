import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from springtide.stream.broker.embedded import EmbeddedBroker, find_broker, require_broker
from springtide.stream.errors import BrokerUnavailableError, EmbeddedBrokerError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from tests.support.waiting import wait_until

OWNER = """
import sys, time
from pathlib import Path
from springtide.stream.broker.embedded import EmbeddedBroker
EmbeddedBroker(Path(sys.argv[1])).start()
print("up", flush=True)
time.sleep(60)
"""


def start_owner(log: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[3]
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(log)],
        env=dict(os.environ) | {"PYTHONPATH": f"{root / 'deploy' / 'package'}:{root / 'deploy' / 'client'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout.readline() == "up\n"
    owner.stdout.close()
    return owner


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_its_address_is_in_the_log_while_it_runs(own_broker):
    own_broker.start()
    written = json.loads((own_broker.log_path / "broker.json").read_text())
    assert written == {"address": own_broker.address, "pid": own_broker.pid}
    assert require_broker(own_broker.log_path).address == own_broker.address
    with Admin(KafkaConfig(bootstrap_servers=own_broker.address)) as admin:
        assert admin.client.list_topics() == []
    own_broker.stop()
    assert not (own_broker.log_path / "broker.json").exists()
    assert find_broker(own_broker.log_path) is None
    with pytest.raises(BrokerUnavailableError, match="springtide broker"):
        require_broker(own_broker.log_path)


def test_it_dies_with_a_killed_parent_and_its_file_is_ignored(tmp_path, own_broker):
    owner = start_owner(own_broker.log_path)
    info = find_broker(own_broker.log_path)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_until(lambda: ended(info.pid), "the broker's end")
    assert find_broker(own_broker.log_path) is None
    own_broker.start()
    assert own_broker.address == info.address


def test_a_second_broker_of_the_same_log_is_refused_in_one_line(own_broker):
    owner = start_owner(own_broker.log_path)
    with pytest.raises(EmbeddedBrokerError, match="already running at") as refused:
        own_broker.start()
    assert "\n" not in str(refused.value)
    assert find_broker(own_broker.log_path) is not None
    owner.kill()
    owner.wait()


def test_a_taken_port_is_refused(own_broker, tmp_path):
    own_broker.start()
    with pytest.raises(EmbeddedBrokerError, match="is taken"):
        EmbeddedBroker(tmp_path / "other", own_broker.port).start()
    assert not (tmp_path / "other" / "broker.json").exists()


def test_wait_returns_when_the_process_ends(own_broker):
    own_broker.start()
    assert own_broker.alive
    assert own_broker.wait(0.01) is None
    os.kill(own_broker.pid, signal.SIGKILL)
    assert own_broker.wait(300) == -signal.SIGKILL
    assert not own_broker.alive
