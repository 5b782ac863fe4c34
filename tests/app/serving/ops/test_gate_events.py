"""The trainer's health gate as a server tells of it."""

from app.serving.ops.gate_metrics import declare_gate_metrics, update_gate_metrics

from app.serving.metrics.registry import MetricsRegistry

HOLDING = {"state": "holding", "action": "alert", "reason": "norm", "detail": "...", "trips": 2, "rollbacks": 1}


def lines(status: dict) -> list[str]:
    metrics = MetricsRegistry()
    declare_gate_metrics(metrics)
    update_gate_metrics(metrics, {"gate": HOLDING})
    update_gate_metrics(metrics, status)
    return metrics.text().splitlines()


def test_what_is_held_back_is_a_metric_with_its_reason():
    told = lines({"gate": HOLDING})
    assert 'springtide_gate_holding{reason="norm"} 1' in told
    assert "springtide_gate_trips_total 2" in told
    assert "springtide_gate_rollbacks_total 1" in told
    over = lines({"gate": HOLDING | {"state": "open"}})
    assert not [line for line in over if line.startswith("springtide_gate_holding{")]


def test_a_trainer_that_says_nothing_of_a_gate_has_no_metrics_of_it():
    assert not [line for line in lines({"gate": None}) if line.startswith("springtide_gate_holding{")]


def test_a_gate_that_closes_is_an_event(world):
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
