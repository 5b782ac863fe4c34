"""The commands against Apache Kafka: credentials, the consumer group, retention, partitions that are added."""

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import pytest

from springtide.app.version_log.trainer_status import read_status
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.library import kafka
from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import Workspace
from tests.support.apache_kafka import PASSWORD, TOKEN_AUDIENCE, TOKEN_ISSUER, USER, shared_node
from tests.support.broker import apache_only
from tests.support.kafka import configure_topic, create_topic, produce, read_topic
from tests.support.processes import start_springtide
from tests.support.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from tests.support.waiting import wait_until

pytestmark = apache_only
CLICKS = make_clicks(1_000)


def files_with(folder: Path, *secrets: str) -> list[Path]:
    """The files below a folder that hold one of the texts."""
    wanted = [secret.encode() for secret in secrets]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(secret in path.read_bytes() for secret in wanted)]


@pytest.fixture
def token_server() -> Iterator[TokenServer]:
    with TokenServer(lambda: shared_node().token_key.token(iss=TOKEN_ISSUER, aud=TOKEN_AUDIENCE)) as server:
        yield server


def secure_settings(way: str, server: TokenServer, secrets: Path) -> tuple[str, dict[str, str], dict[str, str]]:
    """The address, the `[source] kafka` settings and the environment of a way to connect."""
    node = shared_node()
    authority = {"ssl_cafile": str(node.authority.certificate)}
    password = {"sasl_plain_username": USER, "sasl_plain_password": "env:KAFKA_PASSWORD"}
    if way == "PLAIN, from the environment":
        options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"} | password
        return node.sasl_address, options, {"KAFKA_PASSWORD": PASSWORD}
    if way == "SCRAM over TLS, from a file":
        (secrets / "password").write_text(PASSWORD + "\n")
        options = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512"} | authority | password
        return node.sasl_tls_address, options | {"sasl_plain_password": f"file:{secrets / 'password'}"}, {}
    if way == "client certificate":
        ours = node.client_certificate
        files = {"ssl_certfile": str(ours.certificate), "ssl_keyfile": str(ours.key)}
        return node.tls_address, {"security_protocol": "SSL"} | authority | files, {}
    options = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_url": server.url}
    options |= authority | {"sasl_oauth_client_id": CLIENT_ID, "sasl_oauth_client_secret": "env:CLIENT_SECRET"}
    return node.sasl_tls_address, options, {"CLIENT_SECRET": CLIENT_SECRET}


@pytest.mark.parametrize(
    "way",
    ["PLAIN, from the environment", "SCRAM over TLS, from a file", "client certificate", "OAUTHBEARER over TLS"],
)
def test_a_trainer_learns_over_a_secure_connection_and_shows_no_secret(
    workspace: Workspace, way: str, token_server: TokenServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    workspace.start_broker()
    workspace.produce([*CLICKS, b"not JSON"])
    address, options, environment = secure_settings(way, token_server, tmp_path_factory.mktemp("secrets"))
    workspace.configure({"source": {"bootstrap_servers": address, "kafka": options}})
    trainer = workspace.start("train", "--until-end", "--debug", "--no-compact", environment=environment)
    assert trainer.wait(600) == 0
    status = read_status(workspace.log)
    assert status is not None
    assert status.samples_trained == len(CLICKS)
    assert len(workspace.consume("clicks.dead")) == 1
    check = workspace.start("check", "--debug", environment=environment)
    assert check.wait(600) == 0
    key = Path(options.get("ssl_keyfile", "/dev/null")).read_text()[100:160]
    assert files_with(workspace.folder, PASSWORD, CLIENT_SECRET, *([key] if key else [])) == []


@pytest.mark.parametrize("command", [["train"], ["train", "--until-end"], ["check"], ["replay", "clicks.csv"]])
def test_a_wrong_password_ends_a_command_with_the_cause_and_without_the_password(
    workspace: Workspace, command: list[str]
) -> None:
    workspace.start_broker()
    workspace.produce(CLICKS[:1])
    (workspace.folder / "clicks.csv").write_text("user_id,item_id,age,ts,click\n1,a,20,1,0\n")
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": USER}
    options |= {"sasl_plain_password": "env:KAFKA_PASSWORD"}
    workspace.configure({"source": {"bootstrap_servers": shared_node().sasl_address, "kafka": options}})
    done = workspace.start(*command, environment={"KAFKA_PASSWORD": "a-wrong-password"})
    assert done.wait(600) == 1
    outputs = "".join(path.read_text() for path in workspace.folder.glob(f"*-{command[0]}.*"))
    assert "refuses the credentials of user 'trainer'" in outputs
    assert "check sasl_plain_username and sasl_plain_password" in outputs
    assert files_with(workspace.folder, "a-wrong-password") == []


def test_a_traceback_shows_no_secret(workspace: Workspace) -> None:
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": USER}
    options |= {"sasl_plain_password": "in-clear-in-the-file"}
    workspace.configure({"source": {"bootstrap_servers": shared_node().sasl_address, "kafka": options}})
    train = start_springtide("train", "--debug", folder=workspace.folder, stdout=PIPE, stderr=STDOUT)
    output, _ = train.communicate(timeout=600)
    assert train.returncode == 1
    assert "Traceback" in output
    assert "refuses the credentials of user 'trainer'" in output
    assert "in-clear-in-the-file" not in output
    assert files_with(workspace.folder, "in-clear-in-the-file") == [workspace.config]


def committed(group: str) -> dict[int, int]:
    """The offsets that a group has reported, by partition."""
    with Admin(KafkaConfig(bootstrap_servers=shared_node().address)) as admin:
        found: dict[Any, Any] = admin.client.list_group_offsets(group)[group]
    return {partition.partition: offset.offset for partition, offset in found.items()}


def test_the_groups_last_offsets_are_reported_also_on_a_cluster_that_never_had_a_group(workspace: Workspace) -> None:
    workspace.start_broker()
    workspace.produce(CLICKS)
    shared_node().delete_topics("__consumer_offsets")  # as on a new cluster
    workspace.train_until_end("--no-compact")
    assert committed("springtide-test") == {0: len(CLICKS)}


def test_records_that_retention_deleted_unread_are_counted(workspace: Workspace) -> None:
    address = workspace.start_broker()
    workspace.produce(CLICKS[:200])
    assert workspace.train_until_end("--no-compact")["records_deleted_unread"] == 0
    workspace.produce(CLICKS[200:500])
    with Admin(KafkaConfig(bootstrap_servers=address)) as admin:
        topic = admin.require_topic("clicks")
        admin.client.delete_records({kafka.TopicPartition("clicks", 0): 450})
        wait_until(lambda: admin.beginning_offsets(topic)[topic.partitions[0]] == 450, "deleted records")
    refused = workspace.run("train", "--until-end", "--no-compact")
    assert refused.returncode == 1
    assert "250 records were deleted before they were read" in refused.stderr
    assert "on_reset" in refused.stderr
    workspace.configure({"source": {"on_reset": "earliest"}})
    status = workspace.train_until_end("--no-compact")
    assert (status["records_deleted_unread"], status["topic_resets"]) == (250, 1)
    assert status["samples_trained"] == 250


def test_partitions_that_are_added_while_a_trainer_runs_are_read(workspace: Workspace) -> None:
    address = workspace.start_broker()
    workspace.produce(CLICKS[:100])
    trainer = workspace.start("train", "--no-compact")
    wait_until(lambda: workspace.samples_trained() == 100, "the first partition")
    with Admin(KafkaConfig(bootstrap_servers=address)) as admin:
        admin.client.create_partitions({"clicks": 3})
        wait_until(lambda: admin.require_topic("clicks").num_partitions == 3, "partitions")
    for number in (1, 2):
        produce(address, "clicks", CLICKS[100 * number : 100 * number + 100], partition=number)
    wait_until(lambda: workspace.samples_trained() == 300, "the new partitions")
    assert workspace.stop(trainer) == 0


def test_a_dead_letter_that_its_topic_does_not_take_is_cut(workspace: Workspace) -> None:
    address = workspace.start_broker()
    configure_topic(address, "clicks.dead", {"max.message.bytes": "100000"})
    large = b"{" + b"x" * 300_000
    workspace.produce([*CLICKS[:10], large, b"{short"])
    status = workspace.train_until_end("--no-compact")
    assert (status["samples_trained"], status["dead_letters"]) == (10, {"bad_json": 2})
    found = {dict(record.headers)["offset"]: record for record in read_topic(address, "clicks.dead")}
    assert large.startswith(found[b"10"].value)
    assert len(found[b"10"].value) > 90_000
    assert dict(found[b"10"].headers)["value_bytes"] == b"300001"
    assert found[b"11"].value == b"{short"


def test_replay_warns_of_a_retention_that_deletes_what_it_sends(workspace: Workspace) -> None:
    address = workspace.start_broker()
    create_topic(address, "clicks")
    configure_topic(address, "clicks", {"retention.ms": "60000"})
    (workspace.folder / "clicks.jsonl").write_bytes(b"\n".join(CLICKS[:10]))
    done = workspace.run("replay", "clicks.jsonl")
    assert done.returncode == 0
    assert "retention.ms" in done.stderr
    configure_topic(address, "clicks", {"retention.ms": "-1"})
    done = workspace.run("replay", "clicks.jsonl")
    assert "retention.ms" not in done.stderr
    assert json.loads(CLICKS[0])
