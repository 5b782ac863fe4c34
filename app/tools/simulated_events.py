"""Simulated impressions and clicks as companies have them: apart, in two topics, late, in disorder, some sent twice.

Knows no Kafka: `SimulatedEvents` says which messages of which topic are due.
"""

# N impressions
import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.stream.join.config import JoinPlan
from springtide_client.keys import encode_id

if TYPE_CHECKING:
    from springtide.app.tools.simulator import Clicks

MEAN_DELAY_MS, MAX_DELAY_MS = 5_000.0, 60_000.0  # from the impression to its click, exponential
EARLY_SHARE, MAX_EARLY_MS = 0.01, 400  # of clicks that seem to come before their impression: clocks differ
MEAN_JITTER_MS, MAX_JITTER_MS = 100.0, 1_000.0  # from a click to its message
STALLED_SHARE, MIN_STALL_MS, MAX_STALL_MS = 0.002, 4_000, 8_000  # of clicks whose message is held up
TWICE_SHARE = 0.005  # of impressions and of clicks that are sent twice
STRANGE_SHARE = 0.005  # of clicks that belong to no impression
KEYS = ("request_id", "item_id", "user_id")  # what an impression and its click have in common


def fits_simulated_events(plan: JoinPlan) -> bool:
    """Return True if simulated impressions and clicks can be joined so."""
    (events,) = plan.events
    conditions = {
        (events.schema.categorical[column], id_) for where, _ in events.labels.values() for column, id_ in where.items()
    }
    is_any = all(label.value == "any" for label in plan.labels)
    return is_any and set(plan.config.key) <= set(KEYS) and conditions <= {("action", encode_id("click")[0])}


class SimulatedEvents:
    """Takes simulated clicks apart. Repeatable: equal (seed, start, chunks) give equal messages and times."""

    def __init__(self, plan: JoinPlan, *, seed: int, start_ms: int) -> None:
        """`start_ms`: of the generator, so that ids of two runs differ."""
        (label,) = plan.labels
        self._seed, self._start_ms = seed, start_ms
        self._window_ms, self._early_ms = label.window_ms, round(1000 * plan.config.early_seconds)
        self._num_shown = 0
        self._num_queued = 0
        self._queue: list[tuple[int, int, bytes]] = []  # (when it is sent, a number, message)
        self._encode = msgspec.json.Encoder().encode

    def __len__(self) -> int:
        """Clicks that are still to come."""
        return len(self._queue)

    def show(self, clicks: "Clicks") -> tuple[list[bytes], npt.NDArray[np.bool_]]:
        """The messages of a chunk's impressions, in disorder, and which of them a join learns as clicked (N).

        Their clicks are queued.
        """
        num = len(clicks)
        random = np.random.default_rng((self._seed, self._start_ms, self._num_shown, 1))
        requests = [f"{self._start_ms:x}-{number}" for number in range(self._num_shown, self._num_shown + num)]
        self._num_shown += num
        messages = clicks.to_json(requests)
        delay_ms_N = np.minimum(random.exponential(MEAN_DELAY_MS, num), MAX_DELAY_MS).astype(np.int64)
        is_early_N = random.random(num) < EARLY_SHARE
        delay_ms_N[is_early_N] = -random.integers(1, MAX_EARLY_MS, num)[is_early_N]
        jitter_ms_N = np.minimum(random.exponential(MEAN_JITTER_MS, num), MAX_JITTER_MS).astype(np.int64)
        is_stalled_N = random.random(num) < STALLED_SHARE
        jitter_ms_N[is_stalled_N] += random.integers(MIN_STALL_MS, MAX_STALL_MS, num)[is_stalled_N]
        is_strange_N, is_twice_N = random.random(num) < STRANGE_SHARE, random.random(num) < TWICE_SHARE
        for n in np.flatnonzero(clicks.click_N).tolist():
            click_ms = int(clicks.ts_N[n] + delay_ms_N[n])
            click = {
                "ts": click_ms,
                "action": "click",
                "request_id": f"other-{requests[n]}" if is_strange_N[n] else requests[n],
                "item_id": int(clicks.impressions.item_N[n]),
                "user_id": int(clicks.impressions.user_N[n]),
            }
            # it is sent no sooner than its impression, whose clock is right
            sent_ms = max(click_ms, int(clicks.ts_N[n])) + int(jitter_ms_N[n])
            for _ in range(2 if is_twice_N[n] else 1):
                heapq.heappush(self._queue, (sent_ms, self._num_queued, self._encode(click)))
                self._num_queued += 1
        order = random.permutation(np.concatenate([np.arange(num), np.flatnonzero(random.random(num) < TWICE_SHARE)]))
        is_joined_N = ~(is_strange_N | is_stalled_N) & (-self._early_ms <= delay_ms_N) & (delay_ms_N <= self._window_ms)
        return [messages[n] for n in order.tolist()], clicks.click_N & is_joined_N

    def due_clicks(self, now_ms: int) -> Iterator[bytes]:
        """Take the messages of clicks that are sent by now."""
        while self._queue and self._queue[0][0] <= now_ms:
            yield heapq.heappop(self._queue)[2]

    def pause_message(self, now_ms: int) -> bytes:
        """A message of the clicks' topic that is no click: with it time goes on there while nothing is shown."""
        ids = dict.fromkeys(KEYS, f"pause-{now_ms}")
        return self._encode({"ts": now_ms, "action": "pause", **ids})
