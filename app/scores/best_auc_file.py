"""What the simulator of a log tells others: the best AUC that anyone could reach."""

import json
from pathlib import Path


def read_best_auc(log_path: Path) -> float | None:
    """What the simulator of a log last told; None where there is none."""
    try:
        told = json.loads((log_path / "simulator.json").read_text())["best_auc"]
        return None if told is None else float(told)
    except (OSError, ValueError, KeyError, TypeError):
        return None
