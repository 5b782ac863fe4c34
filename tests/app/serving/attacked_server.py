"""A server that receives hostile requests, and must still answer a good one correctly afterwards."""

import contextlib
import io
import re

import msgspec
import numpy as np
import pyarrow

from springtide_client.keys import hash_string
from tests.app.serving.raw_connection import ARROW, JSON, MSGPACK, RAW, Connection, request

USER, ITEM = 0, 1


ADMIN = "Authorization: Bearer admin-secret"
ROWS = {1: [1, 2, 3, 4], 2: [0.5, 0, -0.25, 8]}


def arrow_stream(table, **options) -> bytes:
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema, options=pyarrow.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


PLAIN_ARROW = arrow_stream(pyarrow.table({"id": [1, 2, 9]}))
BODIES = {
    RAW: np.array([1, 2, 9], "<i8").tobytes(),
    JSON: b'{"ids":[1,2,9]}',
    MSGPACK: msgspec.msgpack.encode({"ids": [1, 2, 9]}),
    ARROW: PLAIN_ARROW,
}


class AttackedServer:
    """The server, its connections, and the rows that it serves."""

    def __init__(self, world) -> None:
        world.log.start_epoch()
        world.log.write_status(commands=["forget", "limits", "rollback"])
        rows = {(USER, n): row for n, row in ROWS.items()} | {(ITEM, hash_string(b"a")): [1, 1, 1, 1]}
        number = world.log.publish(rows, strings=[(ITEM, "a")], forgotten=[(USER, 9)])
        self.client = world.serve(max_ids=10_000, max_body_bytes=2**21)
        world.served(self.client, number)
        self.path = world.log.path
        self.connections: list[Connection] = []

    def connect(self) -> Connection:
        self.connections.append(Connection(self.client))
        return self.connections[-1]

    def exchange(self, content: bytes):
        """Send on a new connection; returns the first response."""
        connection = self.connect()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # rejected before everything was sent
            connection.send(content)
        return connection.receive()

    def check_healthy(self) -> None:
        """Both paths still give the right rows."""
        connection = self.connect()
        for _ in range(2):
            status, _, body = connection.exchange(request(BODIES[RAW]))
            assert status == 200
            assert np.frombuffer(body[:32], "<f4").tolist() == [*ROWS[1], *ROWS[2]]
            assert body[48:] == bytes([0, 0, 3])

    def close(self) -> None:
        """Check that no request ended in a 5xx other than 503."""
        for connection in self.connections:
            connection.socket.close()
        answers = re.findall(r'requests_total\{[^}]*status="(5..)"\}', self.client.get("/metrics").text)
        assert set(answers) <= {"503"}
