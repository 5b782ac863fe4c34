"""The best AUC that a model could reach on simulated clicks: that of the probabilities they were drawn from.

The simulator writes it to `simulator.json` in the log's folder; the server's status and the demo read it.
"""

# N clicks
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.scores.auc import click_auc
from springtide_client.system.clock import wall_ms
from springtide_client.system.files import write_atomically
from springtide_client.system.json_text import decode_json

FILE_NAME = "simulator.json"


class BestAucWindow:
    """The recent clicks and their true probabilities, in a ring buffer."""

    def __init__(self, window: int = 20_000) -> None:
        self._probability = np.zeros(window)
        self._click = np.zeros(window, dtype=bool)
        self._num = 0

    def observe(self, probability_N: npt.NDArray[np.float64], click_N: npt.NDArray[np.bool_]) -> None:
        """Add clicks to the window."""
        at_N = (self._num + np.arange(len(click_N))) % len(self._click)
        self._probability[at_N], self._click[at_N] = probability_N, click_N
        self._num += len(click_N)

    def value(self) -> float | None:
        """Return the AUC; None while the window has only clicks or only non-clicks."""
        num = min(self._num, len(self._click))
        return click_auc(self._probability[:num], self._click[:num])


def write_best_auc(log_path: Path, best_auc: float | None) -> None:
    """Replace the file in the log's folder; a reader sees the old or the new one, complete."""
    log_path.mkdir(parents=True, exist_ok=True)
    content = msgspec.json.encode({"best_auc": best_auc, "updated_ms": wall_ms()})
    write_atomically(log_path / FILE_NAME, content, durable=False)


def read_best_auc(log_path: Path) -> float | None:
    """Return what the log's simulator last wrote; None if there is no simulator."""
    try:
        best_auc = decode_json((log_path / FILE_NAME).read_bytes())["best_auc"]
        return None if best_auc is None else float(best_auc)
    except (OSError, ValueError, KeyError, TypeError):
        return None
