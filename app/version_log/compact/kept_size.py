"""Whether the bases that the configuration and the pins keep fit into the log's limit."""

from typing import NamedTuple

from springtide.app.version_log.compact.retention import complete_bases
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.retention.keep_rule import num_bytes
from springtide.app.version_log.retention.pins import pin_names
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory


class KeptSize(NamedTuple):
    """Numbers of bases, if all are as large as the newest one."""

    base_bytes: int
    num_wanted: int  # with those by rule
    num_required: int  # the recent ones, the next one, and those of pins
    num_fitting: int  # into log_bytes, when a quarter of it is left for segments
    pins: list[str]


def kept_size(log: LogConfig) -> KeptSize | None:
    """Return the sizes; None for a log that is not written yet."""
    bases = complete_bases(LogDirectory(log.path))
    if not bases:
        return None
    base_bytes, pins, rule = max(1, num_bytes(read_base_manifest(bases[-1]))), pin_names(log.path), log.keep_rule
    required = log.keep_bases + 1 + len(pins)
    fitting = (log.log_bytes - log.log_bytes // 4) // base_bytes
    return KeptSize(base_bytes, required + rule.hourly + rule.daily, required, fitting, pins)
