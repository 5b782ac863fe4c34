"""The OpenAPI page against the server: whatever schemathesis makes of it is answered as the page says, never by 5xx.

SCHEMA_EXAMPLES=300 is the long form.
"""

import os

import msgspec
import pyarrow
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some
from schemathesis.generation import GenerationMode
from springtide_client.keys import hash_string

from app.serving.openapi.operations import OPERATIONS
from app.serving.openapi.schemas import STRING
from tests.app.serving.conftest import World, new_log

NUM_EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "6"))
STREAMS = ("/v1/log", "/v1/events")
USER, ITEM = 0, 1
ADMIN = {"Authorization": "Bearer admin-secret"}
# what the page calls possible may still not fit this model, or no longer this log
SENSIBLE = ["2xx", "304", "400", "404", "410", "415", "416", "422", "503"]
CHECKS = {
    "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503"]},
    "positive_data_acceptance": {"expected-statuses": SENSIBLE},
}


@schemathesis.serializer("application/msgpack")
def packed(context, value):
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:  # an integer that MessagePack has no form for
        return b"\xc1"


@schemathesis.serializer("application/vnd.apache.arrow.stream")
def arrow_stream(context, value):
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table({"id": [str(value)]})
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


class Served:
    """A server with a few rows, and its page."""

    def __init__(self, world) -> None:
        world.log.start_epoch()
        world.log.write_status(commands=["forget", "limits", "rollback"])
        rows = {(USER, n): [1, n, 2, 3] for n in range(-1, 6)} | {(ITEM, hash_string(b"a")): [1, 2, 3, 4]}
        self.version = world.log.publish(rows, strings=[(ITEM, "a")], forgotten=[(USER, 9)])
        client = world.serve(max_ids=50, max_instances=50)
        world.served(client, self.version)
        self.url = str(client.base_url).rstrip("/")
        self.session = requests.Session()
        config = schemathesis.Config.from_dict({"generation": {"database": "none"}, "checks": CHECKS})
        self.page = schemathesis.openapi.from_url(f"{self.url}/openapi.json", config=config)

    def known(self, path):
        """Values of the path that lead somewhere."""
        found = [{}]
        if "{feature}" in path:
            found += [{"feature": name} for name in ("user_id", "item_id", "last_items")]
        if "{id}" in path:
            found += [{"feature": "user_id", "id": text} for text in ("1", "-1", "9", "77")]
        if "{v}" in path:
            found += [{"v": self.version}, {"v": 1 << 32}]
        if "{name}" in path:
            found += [{"v": 1 << 32, "name": name} for name in ("manifest.json", "model.pt2", "../manifest.json")]
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    world = World(new_log(tmp_path_factory.mktemp("contract") / "log"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPRINGTIDE_TOKENS", "admin=admin-secret")
        made = Served(world)
    with made.session:
        yield made
    world.close()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_operation_behaves_as_the_document_says(served, method, path, mode):
    operation = served.page[path][method]
    told = operation.definition.raw
    takes = [parameter["schema"] for parameter in told.get("parameters", ())] + [told.get("requestBody", STRING)]
    if mode is GenerationMode.NEGATIVE and all(shape.get("type") == "string" for shape in takes):
        return  # any text will do: nothing wrong can be sent

    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(some.data())
    def holds(data):
        known = data.draw(some.sampled_from(served.known(path)))
        case = data.draw(operation.as_strategy(generation_mode=mode, path_parameters=known))
        if path not in STREAMS:
            waits = case.query.get("wait_seconds") if case.query else None
            if isinstance(waits, int | float) and 0 < waits <= 60:
                case.query["wait_seconds"] = 0.001
            answer = case.call(base_url=served.url, session=served.session, headers=ADMIN, timeout=20)
            if answer.status_code != 206:  # a piece of a JSON file is no JSON
                case.validate_response(answer, headers=ADMIN)
            return
        sent = case.as_transport_kwargs(base_url=served.url)
        with served.session.request(**sent, stream=True, timeout=20) as answer:
            if answer.status_code == 200:  # it has no end
                kind = answer.headers["content-type"].partition(";")[0]
                assert kind in told["responses"]["200"]["content"]
            else:
                case.validate_response(answer)

    holds()
