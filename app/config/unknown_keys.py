"""The answer to a configuration key that does not exist: the nearest one that does, or the new name of an old one."""

from collections.abc import Iterable, Mapping
from typing import Any

from springtide.app.errors import UserError
from springtide_client.system.settings import Settings, keys, unknown_key

NEW_NAMES = {
    "access_log_share": "access_log_sample_rate",
    "capture": "cuda_graphs",
    "client_seconds": "request_timeout_seconds",
    "halve_samples": "decay_every_samples",
    "poll_seconds": "poll_interval_seconds",
    "predict_batch_rows": "predict_max_batch_rows",
    "predict_wait_ms": "predict_batch_timeout_ms",
}


def check_keys(where: str, table: Mapping[str, Any], settings_class: type[Settings]) -> None:
    """Raise UserError for the first key of a table, or of a table inside it, that the settings do not have."""
    known = {name: key for name, key in keys(settings_class).items() if not key.is_internal}
    for name, value in table.items():
        if name not in known:
            for outer, key in known.items():
                if key.table is not None and name in keys(key.table):
                    raise UserError(f"{where} has an unknown key {name!r}: write {outer} = {{ {name} = ... }}")
            raise unknown_key_error(where, name, known)
        if (inner := known[name].table) is not None and isinstance(value, Mapping):
            check_keys(f"{where} {name}", value, inner)


def has_key(settings_class: type[Settings], name: str) -> bool:
    """Return True if a file may have this key in a table of the settings."""
    key = keys(settings_class).get(name)
    return key is not None and not key.is_internal


def unknown_key_error(where: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for an unknown key of the table that `where` names."""
    known = list(known)
    if NEW_NAMES.get(name) in known:
        return UserError(f"{where} has an unknown key {name!r}: did you mean {NEW_NAMES[name]}?")
    return UserError(f"{where} {unknown_key(name, known)}")
