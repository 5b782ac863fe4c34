"""Parts that are gone, behind, or closed to strangers: the errors name them, and everything goes on afterwards."""

from pathlib import Path

import pytest

from springtide.app.serving.model import replica
from springtide_client.errors import PartError
from springtide_client.hot_model import HotModel
from tests.app.serving.conftest import USER, World
from tests.app.serving.parts.conftest import fill, owners, raw
from tests.support.ports import free_port
from tests.support.waiting import wait_until

IDS = list(range(60))
OF_FIRST = [i for i, owner in zip(IDS, owners(USER, IDS), strict=True) if owner == 0]


def start(world: World, port: int, number: int, **config):
    client = world.serve(port=port, range=f"{number}/2", **config)
    world.served(client, world.log.number)
    return client


def test_a_part_that_is_gone_is_named_until_it_is_back(world) -> None:
    fill(world.log, 60)
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    start(world, ports[0], 1)
    second = start(world, ports[1], 2)
    router = world.serve(parts=urls)
    world.served(router, world.log.number)
    with HotModel(urls) as model:
        expected = raw(router, "user_id", IDS).content
        rows, _ = model.lookup("user_id", IDS)
        world.stop(second)
        for _ in range(2):
            refused = raw(router, "user_id", IDS)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "part_unavailable"
            assert f"part 2/2 at {urls[1]} does not answer" in refused.json()["error"]["message"]
            assert "retry-after" in refused.headers
        assert router.post("/v1/predict", json={"instances": [{"user_id": i} for i in IDS]}).status_code == 503
        missing = next(i for i in IDS if i not in OF_FIRST)
        assert router.get(f"/v1/embeddings/user_id/{missing}").json()["error"]["code"] == "part_unavailable"
        with pytest.raises(PartError, match=r"part 2/2 at .* does not answer"):
            model.lookup("user_id", IDS)
        assert raw(router, "user_id", OF_FIRST).status_code == 200  # the other part's keys
        assert model.lookup("user_id", OF_FIRST)[0].shape == (len(OF_FIRST), 4)
        assert router.get("/readyz").status_code == 200
        start(world, ports[1], 2)
        assert raw(router, "user_id", IDS).content == expected
        assert model.lookup("user_id", IDS)[0].tobytes() == rows.tobytes()
        number = world.log.publish({(USER, i): [i, 4, 4, 4] for i in IDS})
        world.served(router, number)
        wait_until(lambda: model.version == number)
        assert model.lookup("user_id", IDS)[0][:, 1].tolist() == [4] * len(IDS)


def test_parts_that_never_agree_on_a_version_are_named(world, monkeypatch) -> None:
    monkeypatch.setattr(replica, "AGREE_SECONDS", 0.1)
    monkeypatch.setattr("springtide_client.parts.parted_view.WAIT_MS", 50)
    fill(world.log, 60)
    old, ports = world.log.number, [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    start(world, ports[0], 1)
    stuck = world.serve(version=old, port=ports[1], range="2/2")
    world.served(stuck, old)
    router = world.serve(parts=urls)
    world.served(router, old)
    assert raw(router, "user_id", IDS).status_code == 200
    number = world.log.publish({(USER, i): [i, 4, 4, 4] for i in IDS})
    world.served(router, number)
    refused = raw(router, "user_id", IDS)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "versions_differ")
    assert f"part 2/2 at {urls[1]}: version {number} is not served yet, the newest is {old}" in refused.text
    assert raw(router, "user_id", OF_FIRST).status_code == 200
    rejected = 'springtide_requests_rejected_total{reason="part"}'
    assert rejected in router.get("/metrics").text


def test_servers_show_each_other_a_token(world, tmp_path: Path, monkeypatch) -> None:
    fill(world.log, 60)
    tokens = tmp_path / "tokens"
    tokens.write_text("predict=predict-secret\nread=reader-secret\n")
    tokens.chmod(0o600)
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    for number, port in enumerate(ports, 1):
        start(world, port, number, tokens_file=str(tokens))
    router = world.serve(parts=urls, tokens_file=str(tokens))
    stranger = world.serve(parts=urls)
    for client in (router, stranger):
        world.served(client, world.log.number)
    allowed = {"authorization": "Bearer reader-secret"}
    assert raw(router, "user_id", IDS, **allowed).status_code == 200
    assert router.get("/v1/embeddings/user_id/1", headers=allowed).status_code == 200
    assert raw(router, "user_id", IDS).status_code == 401
    refused = raw(stranger, "user_id", IDS)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "part_unavailable")
    assert "needs a token of scope read" in refused.json()["error"]["message"]
    assert stranger.get("/v1/embeddings/user_id/1").json()["error"]["code"] == "part_unavailable"
    with HotModel(urls, token="reader-secret") as model:
        assert model.lookup("user_id", IDS)[1].shape == (len(IDS),)
