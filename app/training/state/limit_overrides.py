"""Limits of the table that were changed at run time, each with the configured value that it overrides.

Versions hold them, so they survive a restart; a configured value that has changed since wins over them.
"""

from collections.abc import Mapping
from typing import Any

from springtide.app.version_log.commands.limits import (
    FEATURE_LIMITS,
    TABLE_LIMITS,
    LimitName,
    iterate_limits,
    limits_document,
)
from springtide.embeddings.config import Admission, FeaturePolicy, TableConfig
from springtide.embeddings.optimizer import RowOptimizer
from springtide_client.schema import Schema

NO_POLICY = FeaturePolicy()  # of features that have none


class LimitOverrides:
    """The limits in effect: the configuration, overridden by commands."""

    def __init__(self, config: TableConfig, schema: Schema) -> None:
        self.config, self.schema = config, schema
        self._changed: dict[LimitName, tuple[Any, Any]] = {}  # the limit, and the configured value that it overrides

    def add(self, limits: Mapping[LimitName, Any]) -> None:
        """Override these limits from now on."""
        for name, value in limits.items():
            configured = self._configured(name)
            self._changed.pop(name, None)
            if value != configured:
                self._changed[name] = (value, configured)

    @property
    def changed(self) -> dict[LimitName, Any]:
        """The limits that differ from the configuration."""
        return {name: value for name, (value, _) in self._changed.items()}

    def document(self) -> dict[str, Any]:
        """Return the changed limits as JSON: [the limit, the configured value that it overrides] by name."""
        return limits_document({name: list(pair) for name, pair in self._changed.items()})

    def restore(self, document: Mapping[str, Any]) -> None:
        """Continue with the limits of a version, except for those whose configured value has changed since."""
        self._changed = {
            name: (value, overridden)
            for name, (value, overridden) in iterate_limits(document)
            if self._is_known(name) and self._configured(name) == overridden
        }

    def min_counts(self) -> dict[int, int]:
        """Return, by feature number, how often an id must be seen before it gets a row, if more than once."""
        default = Admission.of(self.config.admission).min_count
        counts = {}
        for feature in self.schema.features:
            if feature not in self.schema.share:
                count = self.value(feature, "min_count")
                counts[self.schema.number(feature)] = default if count is None else int(count)
        return {number: count for number, count in counts.items() if count > 1}

    def value(self, feature: str | None, limit: str) -> Any:
        """Return the limit in effect; None if there is none."""
        name = (feature, limit)
        return self._changed[name][0] if name in self._changed else self._configured(name)

    def _is_known(self, name: LimitName) -> bool:
        feature, limit = name
        if feature is None:
            return limit in TABLE_LIMITS
        return limit in FEATURE_LIMITS and feature in self.schema.features and feature not in self.schema.share

    def _configured(self, name: LimitName) -> Any:
        feature, limit = name
        if feature is not None:
            return getattr(self.config.features.get(self.schema.number(feature), NO_POLICY), limit)
        return RowOptimizer.of(self.config.optimizer).lr if limit == "lr" else getattr(self.config, limit)
