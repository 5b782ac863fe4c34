"""The trainer's health gate as metrics of this server."""

from collections.abc import Mapping
from typing import Any

from app.serving.ops.registry import MetricsRegistry
from app.serving.ops.trainer_metrics import numeric_items


def declare_gate_metrics(metrics: MetricsRegistry) -> None:
    """The metrics, by name."""
    metrics.gauge("springtide_gate_holding", "1 while the health gate holds the model back, by reason.")
    metrics.counter("springtide_gate_trips_total", "How often it did, since the trainer's start.", over="own")
    metrics.counter(
        "springtide_gate_rollbacks_total", "How often it went back by itself, since the log began.", over="own"
    )


def update_gate_metrics(metrics: MetricsRegistry, status: Mapping[str, Any]) -> None:
    """Bring them up to what the trainer's status says."""
    gate = status.get("gate") if isinstance(status.get("gate"), dict) else {}
    assert gate is not None
    holding = {str(gate.get("reason")): 1.0} if gate.get("state") == "holding" else {}
    metrics.replace_all("springtide_gate_holding", "reason", holding)
    metrics.set("springtide_gate_trips_total", numeric_items(gate).get("trips"))
    metrics.set("springtide_gate_rollbacks_total", numeric_items(gate).get("rollbacks"))
