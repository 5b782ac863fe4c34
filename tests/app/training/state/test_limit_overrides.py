import pytest
from springtide_client.schema import Schema

from app.training.state.limit_overrides import LimitOverrides
from app.version_log.commands.limits import iterate_limits, limits_document, parse_limits, to_table_limits
from embeddings.config import FeaturePolicy, TableConfig

SCHEMA = Schema(labels=("click",), categorical=("user", "item"), sequence=("last",), share={"last": "item"})


def config(**changes) -> TableConfig:
    features = {1: FeaturePolicy(ttl_seconds=60, quota_bytes="1MiB", min_count=3)}
    return TableConfig(**{"device_bytes": "8MiB", "features": features} | changes)


def changed(body, **changes) -> LimitOverrides:
    limits = LimitOverrides(config(**changes), SCHEMA)
    limits.add(parse_limits(body, SCHEMA))
    return limits


BODY = {"device_bytes": "4MiB", "lr": 0.5, "features": {"item": {"ttl_seconds": 5, "quota_bytes": None}}}


def test_a_change_knows_what_it_overrides():
    document = changed(BODY).document()
    assert document == {
        "device_bytes": [4 << 20, 8 << 20],
        "lr": [0.5, 0.05],
        "features": {"item": {"ttl_seconds": [5.0, 60.0], "quota_bytes": [None, 1 << 20]}},
    }


def test_changes_outlive_a_restart_under_the_same_config():
    again = LimitOverrides(config(), SCHEMA)
    again.restore(changed(BODY).document())
    assert again.document() == changed(BODY).document()
    limits = to_table_limits(again.changed, SCHEMA)
    assert (limits.device_bytes, limits.lr) == (4 << 20, 0.5)
    assert (limits.ttl_seconds, limits.quota_bytes, limits.min_count) == ({1: 5.0}, {1: None}, {})


def test_a_config_that_says_something_new_wins():
    again = LimitOverrides(config(device_bytes="16MiB"), SCHEMA)
    again.restore(changed(BODY).document())
    assert set(again.document()) == {"lr", "features"}
    assert again.value(None, "device_bytes") == 16 << 20


def test_a_change_back_to_the_config_is_none():
    limits = changed(BODY)
    limits.add(parse_limits({"lr": 0.05}, SCHEMA))
    assert "lr" not in limits.document()


def test_the_least_counts_that_hold_are_those_above_one():
    limits = LimitOverrides(config(), SCHEMA)
    assert limits.min_counts() == {1: 3}
    limits.add(parse_limits({"features": {"item": {"min_count": 1}, "user": {"min_count": 2}}}, SCHEMA))
    assert limits.min_counts() == {0: 2}
    everywhere = LimitOverrides(config(admission={"min_count": 4}), SCHEMA)
    everywhere.add(parse_limits({"features": {"item": {"min_count": None}}}, SCHEMA))
    assert everywhere.min_counts() == {0: 4, 1: 4}


def test_a_body_is_what_its_limits_say():
    limits = parse_limits(BODY, SCHEMA)
    assert dict(iterate_limits(limits_document(limits))) == limits


def test_a_feature_of_the_log_that_the_config_no_longer_knows_is_passed_over():
    limits = LimitOverrides(config(), SCHEMA)
    limits.restore({"features": {"gone": {"ttl_seconds": [1.0, None]}}, "lr": [0.5, 0.05]})
    assert limits.document() == {"lr": [0.5, 0.05]}


def test_a_value_that_cannot_be_is_refused_before_anything_changes():
    with pytest.raises(ValueError, match="ttl_seconds"):
        parse_limits({"lr": 0.5, "features": {"item": {"ttl_seconds": -1}}}, SCHEMA)
