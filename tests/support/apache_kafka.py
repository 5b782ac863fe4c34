"""Apache Kafka for tests: one KRaft node from Maven Central, with a listener for each way to connect.

`python -m tests.support.apache_kafka` fetches it, and says in one line why that is not possible. The jars stay in
~/.cache/springtide-kafka; the node's files are in a folder of the test session.
"""

import base64
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import uuid
from contextlib import suppress
from pathlib import Path

from springtide.stream.errors import StreamError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide_client.system import parent_death
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.waiting import wait_until

VERSION = "4.1.0"
CACHE = Path(os.environ.get("SPRINGTIDE_KAFKA_CACHE", Path.home() / ".cache" / "springtide-kafka"))
LIBRARIES = CACHE / VERSION
STREAMS = CACHE / f"streams-{VERSION}"  # Kafka Streams, for a benchmark
FETCH_SECONDS = 300
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>springtide</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
USER, PASSWORD = "trainer", "correct-horse-battery-staple"
TOKEN_ISSUER, TOKEN_AUDIENCE = "springtide-tests", "kafka"
JAVA = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]


class KafkaNotAvailableError(Exception):
    """Java, Maven or Maven Central is missing; the text says which."""


def fetch() -> None:
    """Fetch the node's jars, unless they are there. Raises KafkaNotAvailableError."""
    if shutil.which("java") is None or shutil.which("openssl") is None:
        raise KafkaNotAvailableError("there is no java or no openssl on PATH")
    fetch_jars("kafka_2.13", LIBRARIES)


def fetch_jars(artifact: str, libraries: Path) -> None:
    """Fetch an artifact of Apache Kafka and what it needs, unless it is there. Raises KafkaNotAvailableError."""
    if libraries.is_dir():
        return
    if shutil.which("mvn") is None:
        raise KafkaNotAvailableError("there is no mvn on PATH, and no Apache Kafka in " + str(CACHE))
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        (Path(folder) / "pom.xml").write_text(POM.format(artifact=artifact, version=VERSION))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise KafkaNotAvailableError(f"Maven Central gave no Apache Kafka within {FETCH_SECONDS} s") from None
        if done.returncode:
            first = next((line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line), "no reason")
            raise KafkaNotAvailableError(f"Maven did not get Apache Kafka {VERSION}: {first}")
        with suppress(FileExistsError):
            (Path(folder) / "libs").rename(libraries)


class ApacheKafka:
    """A node that can be killed, frozen and started again on the same ports with the same data.

    `address` is the plain listener's. `proxied_address` is another plain one that tells its clients to come to
    127.0.0.1:`proxy_port`, where a test may put a proxy.
    """

    def __init__(self, folder: Path) -> None:
        fetch()
        folder.mkdir(exist_ok=True)
        self.folder = folder
        names = ("plain", "proxied", "sasl", "tls", "sasl_tls", "controller")
        self._ports = {name: free_port() for name in names}
        self.proxy_port = free_port()
        self.authority = Authority(folder / "ca")  # of the node's certificate and its clients'
        self.client_certificate = self.authority.issue("client")
        self.token_key = self.authority.token_key()
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = folder / "server.properties"
        self._settings.write_text(self._properties())
        self._format()

    def __getattr__(self, name: str) -> str:
        """`address` and `NAME_address`: host:port of a listener."""
        if name != "address" and not name.endswith("_address"):
            raise AttributeError(name)
        return f"127.0.0.1:{self._ports[name.removesuffix('address').rstrip('_') or 'plain']}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start the node and wait until it answers."""
        log = self.folder / "server.log"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(parent_death.__file__), str(os.getpid()), *self._java("kafka.Kafka")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait_until(self._answers, lambda: f"Apache Kafka:\n{log.read_text()[-3000:]}")

    def kill(self) -> None:
        """End the node at once, as a crash does; a frozen one too."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Let the node stand still: its sockets are open, and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def memory_bytes(self) -> int:
        """Its resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def delete_topics(self, *names: str) -> None:
        """Delete topics and wait until the node has forgotten them."""
        with Admin(KafkaConfig(bootstrap_servers=self.address), patient=True) as admin:
            for name in names:
                admin.delete_topic(name)
                wait_until(lambda name=name: admin.topic(name) is None, f"the end of the topic {name}")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"Apache Kafka ended: {(self.folder / 'server.log').read_text()[-3000:]}"
        try:
            with Admin(KafkaConfig(bootstrap_servers=self.address)) as admin:
                return admin.topic("no-such-topic") is None
        except StreamError:
            return False

    def _java(self, main: str, *arguments: str) -> list[str]:
        options = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", f"-Duser.home={self.folder}"]
        options.append("-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=" + self._keys_url)
        arguments = arguments or (str(self._settings),)
        return [shutil.which("java") or "java", *JAVA, *options, "-cp", f"{LIBRARIES}/*", main, *arguments]

    def _format(self) -> None:
        """Make the data folder, with the users of SCRAM in it."""
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        users = []
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            users += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        arguments = ["format", "-t", cluster, "-c", str(self._settings), *users]
        done = subprocess.run(
            self._java("kafka.tools.StorageTool", *arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def _keys_url(self) -> str:
        return (self.folder / "jwks.json").as_uri()

    def _properties(self) -> str:
        (self.folder / "jwks.json").write_text(self.token_key.jwks())
        ports, module = self._ports, "org.apache.kafka.common.security"
        plain = f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        scram = f"{module}.scram.ScramLoginModule required;"
        bearer = f"{module}.oauthbearer.OAuthBearerLoginModule required;"
        lines = textwrap.dedent(
            f"""\
            process.roles=broker,controller
            node.id=1
            controller.quorum.voters=1@127.0.0.1:{ports["controller"]}
            controller.listener.names=CONTROLLER
            inter.broker.listener.name=PLAIN
            listener.security.protocol.map=PLAIN:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT,\
            SASL:SASL_PLAINTEXT,TLS:SSL,SASL_TLS:SASL_SSL
            log.dirs={self.folder / "data"}
            auto.create.topics.enable=false
            offsets.topic.replication.factor=1
            offsets.topic.num.partitions=1
            transaction.state.log.replication.factor=1
            transaction.state.log.min.isr=1
            transaction.state.log.num.partitions=1
            share.coordinator.state.topic.replication.factor=1
            share.coordinator.state.topic.min.isr=1
            group.initial.rebalance.delay.ms=0
            log.retention.ms=-1
            log.retention.check.interval.ms=500
            log.initial.task.delay.ms=500
            log.segment.delete.delay.ms=500
            log.index.size.max.bytes=1048576
            log.cleaner.dedupe.buffer.size=2097152
            log.cleaner.threads=1
            num.network.threads=2
            num.io.threads=4
            num.recovery.threads.per.data.dir=2
            sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
            ssl.keystore.type=PEM
            ssl.keystore.location={self.authority.issue("node").keystore}
            ssl.truststore.type=PEM
            ssl.truststore.location={self.authority.certificate}
            listener.name.tls.ssl.client.auth=required
            sasl.oauthbearer.jwt.validator.class={module}.oauthbearer.BrokerJwtValidator
            sasl.oauthbearer.jwks.endpoint.url={self._keys_url}
            sasl.oauthbearer.expected.audience={TOKEN_AUDIENCE}
            sasl.oauthbearer.expected.issuer={TOKEN_ISSUER}
            """
        ).splitlines()
        listeners = {name.upper(): port for name, port in ports.items()}
        lines.append("listeners=" + ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()))
        advertised = {name: port for name, port in listeners.items() if name != "CONTROLLER"}
        advertised["PROXIED"] = self.proxy_port
        lines.append(
            "advertised.listeners=" + ",".join(f"{name}://127.0.0.1:{port}" for name, port in advertised.items())
        )
        for listener in ("sasl", "sasl_tls"):
            prefix = f"listener.name.{listener}"
            lines.append(f"{prefix}.plain.sasl.jaas.config={plain}")
            lines.append(f"{prefix}.scram-sha-256.sasl.jaas.config={scram}")
            lines.append(f"{prefix}.scram-sha-512.sasl.jaas.config={scram}")
            lines.append(f"{prefix}.oauthbearer.sasl.jaas.config={bearer}")
            handler = f"{module}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            lines.append(f"{prefix}.oauthbearer.sasl.server.callback.handler.class={handler}")
        return "\n".join(lines) + "\n"


@functools.cache
def shared_node() -> ApacheKafka:
    """The node of this test session; it is started at the first call, and ends with `stop_shared_node`."""
    node = ApacheKafka(Path(tempfile.mkdtemp(prefix="springtide-kafka-")))
    try:
        node.start()
    except BaseException:
        node.kill()
        raise
    return node


def stop_shared_node() -> None:
    """End the session's node, if there is one, and delete its files."""
    if shared_node.cache_info().currsize:
        node = shared_node()
        node.kill()
        shutil.rmtree(node.folder, ignore_errors=True)


def main() -> int:
    try:
        fetch()
    except KafkaNotAvailableError as error:
        print(f"Apache Kafka is not tested here: {error}", file=sys.stderr)
        return 1
    print(f"Apache Kafka {VERSION} is in {LIBRARIES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
