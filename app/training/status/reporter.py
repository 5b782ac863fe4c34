"""Reports the trainer's status once a second, and its last one."""

import logging
import time
from collections.abc import Sequence

import msgspec

from springtide.app.training.config import TrainerConfig
from springtide.app.training.health.gate import Gate
from springtide.app.training.input.feature_values import FeatureValues, without_values
from springtide.app.training.session import TrainingSession
from springtide.app.training.status.document import TrainerFacts, trainer_status
from springtide.app.training.status.rank_report import RankReport
from springtide.app.training.status.throughput import ThroughputMeter
from springtide.app.training.status.writer import INTERVAL_SECONDS, StatusWriter
from springtide.app.version_log.trainer_status import TrainerStatus

NUM_FIRST_SAMPLES = 10_000  # since the start; a feature without a value in them is often misspelt

logger = logging.getLogger(__name__)


class TrainerStatusReporter:
    """Builds status documents and hands them to the writer."""

    def __init__(self, config: TrainerConfig, gate: Gate, writer: StatusWriter) -> None:
        self._config, self._gate, self._writer = config, gate, writer
        self._throughput = ThroughputMeter()
        self._own_throughput = ThroughputMeter()  # of this rank's batches
        self._last_report = float("-inf")
        self.values = FeatureValues(config.schema, enough=NUM_FIRST_SAMPLES)  # of this rank's samples
        self._has_warned = False

    @property
    def is_due(self) -> bool:
        """True once a second."""
        return time.monotonic() - self._last_report >= INTERVAL_SECONDS

    def report(self, session: TrainingSession, *, stall_reason: str) -> None:
        """Report the status as of now. `stall_reason`: why learning or publishing waits; "" if neither does.

        All ranks: each tells what it knows.
        """
        self._last_report = time.monotonic()
        self._throughput.record(session.state.samples_trained)
        self._own_throughput.record(session.state.own_samples)
        self._writer.update(self._status(session, stall_reason))

    def last_status(self, session: TrainingSession, *, stall_reason: str) -> TrainerStatus:
        """Return the status of a clean shutdown, to be written once everything is closed."""
        held = self._gate.held
        reason = "ended" if held is None else f"ended while the health gate held the model back: {held.detail}"
        status = self._status(session, stall_reason, is_end=session.batches.until_end)
        return msgspec.structs.replace(
            status, trainer="stopped", reason=reason, clean_shutdown=True, samples_per_second=0.0
        )

    def _status(self, session: TrainingSession, stall_reason: str, *, is_end: bool = False) -> TrainerStatus:
        progress = session.exchange()
        rate = self._own_throughput.per_second()
        own = RankReport.of(session, self.values, samples_per_second=rate, stall_reason=stall_reason)
        reports = session.ranks.all_gather(own)
        if not session.ranks.is_first:
            return self._writer.status
        if not self._has_warned:
            self._warn_of_missing(reports, is_end=is_end)
        facts = TrainerFacts(
            self._config,
            session,
            self._gate,
            self._throughput.per_second(),
            progress.complete_until_ms,
            reports,
        )
        return trainer_status(facts)

    def _warn_of_missing(self, reports: Sequence[RankReport], *, is_end: bool) -> None:
        """Name the features that had no value in the first samples, once there are enough of them or no more."""
        num_samples = sum(report.num_first_samples for report in reports)
        if num_samples >= NUM_FIRST_SAMPLES or (is_end and num_samples):
            self._has_warned = True
            if names := without_values(report.without_values for report in reports):
                logger.warning(
                    "features without any value so far are learned as missing: compare [schema] with the records",
                    extra={"features": ", ".join(names), "samples": num_samples},
                )
