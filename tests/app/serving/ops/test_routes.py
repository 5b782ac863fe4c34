"""Operation routes over a real server."""

import msgspec

HOLDING = {"state": "holding", "action": "alert", "reason": "norm", "detail": "...", "trips": 2, "rollbacks": 1}


def test_a_gate_that_starts_to_hold_is_sent_as_an_event(world):
    client = world.serve()
    world.log.start_epoch()
    number = world.log.publish({(0, 1): [1, 2, 3, 4]})
    world.served(client, number)
    world.log.write_status(gate=HOLDING | {"state": "open", "trips": 0})
    seen = []
    with client.stream("GET", "/v1/events") as answer:
        for line in answer.iter_lines():
            if line.startswith("event: version"):
                world.log.write_status(gate=HOLDING)
            if line.startswith("event: gate"):
                seen.append(line)
            elif seen and line.startswith("data: "):
                assert '"reason":"norm"' in line
                break
    assert seen == ["event: gate"]


def test_drift_that_begins_is_sent_as_an_event(world):
    client = world.serve()
    world.log.start_epoch()
    number = world.log.publish({(0, 1): [1, 2, 3, 4]})
    world.served(client, number)
    drift = {"level": "none", "features": [{"name": "country", "psi": 0.01, "level": "none"}]}
    world.log.write_status(scores={"drift": drift})
    with client.stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()
        for line in lines:
            if line.startswith("event: version"):
                changed = {"name": "country", "psi": 0.31, "level": "large"}
                world.log.write_status(scores={"drift": {"level": "large", "most": "country", "features": [changed]}})
            if line.startswith("event: drift"):
                break
        data = next(line for line in lines if line.startswith("data: "))
    assert msgspec.json.decode(data.removeprefix("data: ")) == {"level": "large", "most": "country"}


def test_every_new_version_is_sent_as_an_event(world):
    world.log.start_epoch()
    client = world.serve()
    world.served(client, world.log.number)
    with client.stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()

        def next_event():
            event = {}
            for line in lines:
                if not line and "data" in event:
                    return event["event"], msgspec.json.decode(event["data"])
                name, _, value = line.partition(": ")
                event[name] = value
            raise AssertionError("the stream ended")

        assert next_event()[1]["version"] == world.log.number
        number = world.log.publish(scores={"whole": {"auc": 0.5}})
        name, document = next_event()
        assert (name, document["version"]) == ("version", number)
        assert next_event() == ("scores", {"version": number, "whole": {"auc": 0.5}})
