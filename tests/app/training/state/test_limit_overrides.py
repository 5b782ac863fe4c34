import pytest

from springtide.app.training.state.limit_overrides import LimitOverrides
from springtide.app.version_log.commands.limits import iterate_limits, limits_document, parse_limits, to_table_limits
from springtide.embeddings.config import FeaturePolicy, TableConfig
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("click",), categorical=("user", "item"), sequence=("last",), share={"last": "item"})


def config(**changes) -> TableConfig:
    features = {1: FeaturePolicy(ttl_seconds=60, quota_bytes="1MiB", min_count=3)}
    return TableConfig(**{"device_bytes": "8MiB", "features": features} | changes)


def changed(body, **changes) -> LimitOverrides:
    limits = LimitOverrides(config(**changes), SCHEMA)
    limits.add(parse_limits(body, SCHEMA))
    return limits


BODY = {"device_bytes": "4MiB", "lr": 0.5, "features": {"item": {"ttl_seconds": 5, "quota_bytes": None}}}


def test_a_changed_limit_keeps_the_configured_value():
    document = changed(BODY).document()
    assert document == {
        "device_bytes": [4 << 20, 8 << 20],
        "lr": [0.5, 0.05],
        "features": {"item": {"ttl_seconds": [5.0, 60.0], "quota_bytes": [None, 1 << 20]}},
    }


def test_changed_limits_survive_a_restart_under_the_same_configuration():
    again = LimitOverrides(config(), SCHEMA)
    again.restore(changed(BODY).document())
    assert again.document() == changed(BODY).document()
    limits = to_table_limits(again.changed, SCHEMA)
    assert (limits.device_bytes, limits.lr) == (4 << 20, 0.5)
    assert (limits.ttl_seconds, limits.quota_bytes, limits.min_count) == ({1: 5.0}, {1: None}, {})


def test_a_changed_configuration_wins_over_an_override():
    again = LimitOverrides(config(device_bytes="16MiB"), SCHEMA)
    again.restore(changed(BODY).document())
    assert set(again.document()) == {"lr", "features"}
    assert again.value(None, "device_bytes") == 16 << 20


def test_a_change_back_to_the_configured_value_is_no_override():
    limits = changed(BODY)
    limits.add(parse_limits({"lr": 0.05}, SCHEMA))
    assert "lr" not in limits.document()


def test_min_counts_lists_only_counts_above_one():
    limits = LimitOverrides(config(), SCHEMA)
    assert limits.min_counts() == {1: 3}
    limits.add(parse_limits({"features": {"item": {"min_count": 1}, "user": {"min_count": 2}}}, SCHEMA))
    assert limits.min_counts() == {0: 2}
    everywhere = LimitOverrides(config(admission={"min_count": 4}), SCHEMA)
    everywhere.add(parse_limits({"features": {"item": {"min_count": None}}}, SCHEMA))
    assert everywhere.min_counts() == {0: 4, 1: 4}


def test_a_body_round_trips_through_its_limits():
    limits = parse_limits(BODY, SCHEMA)
    assert dict(iterate_limits(limits_document(limits))) == limits


def test_an_override_of_an_unknown_feature_is_ignored():
    limits = LimitOverrides(config(), SCHEMA)
    limits.restore({"features": {"gone": {"ttl_seconds": [1.0, None]}}, "lr": [0.5, 0.05]})
    assert limits.document() == {"lr": [0.5, 0.05]}


def test_an_invalid_limit_is_rejected_before_anything_changes():
    with pytest.raises(ValueError, match="ttl_seconds"):
        parse_limits({"lr": 0.5, "features": {"item": {"ttl_seconds": -1}}}, SCHEMA)
