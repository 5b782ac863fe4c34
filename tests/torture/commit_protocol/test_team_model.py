"""The executable model of the log of many writers breaks no promise under its rules, and breaks without them."""

import pytest

from tests.support.scale import IS_LONG
from tests.torture.commit_protocol.team_model.rules import RULES
from tests.torture.commit_protocol.team_model.schedules import SCHEDULES

SHORT_SCHEDULES = 30
LONG_SECONDS, LONG_MUTANT_SECONDS = 120.0, 120.0
LENGTHS = (120, 300, 700)
RARE = ("claim-fsync",)  # not missed in 1,641 schedules, 614,281 steps
# rules without which one of the first schedules breaks, by its seed; the long form tries every rule
QUICK = {
    "one-step": 5,
    "numbers-grow": 2,
    "written-is-seen": 1,
    "all-reported": 10,
    "in-order": 2,
    "new-file-after-torn": 2,
    "fsync-in-order": 5,
    "folder-fsync": 0,
    "durable-shards": 35,
    "durable-looks": 5,
    "claim-first": 11,
    "seal-fsync-main": 1,
    "seal-fsync-shards": 1,
    "seal-whole": 10,
    "base-covers": 2,
    "sealed-only": 2,
    "load-to-tip": 5,
    "rows-from-all": 1,
    "positions-from-all": 1,
    "parent": 5,
    "shard-checksum": 35,
    "whole-version": 2,
    "base-above": 5,
    "swap-when-caught-up": 5,
    "base-durable": 13,
    "base-whole": 28,
    "base-fsync": 5,
    "retire-oldest-kept": 11,
    "retire-not-newest": 1,
    "retire-own-records": 1,
    "forget-writes": 14,
    "order-in-base": 2,
    "rollback-published": 8,
    "rollback-one-target": 17,
    "rollback-forgets": 2,
    "rollback-orders": 13,
}


def test_no_schedule_breaks_a_promise() -> None:
    for seed in range(SHORT_SCHEDULES):
        actions = SCHEDULES.schedule(seed, LENGTHS[seed % len(LENGTHS)])
        assert SCHEDULES.play(seed, actions) is None, SCHEDULES.story(seed, actions, ())


@pytest.mark.parametrize("rule", QUICK)
def test_a_schedule_breaks_without_the_rule(rule: str) -> None:
    seed = QUICK[rule]
    assert SCHEDULES.play(seed, SCHEDULES.schedule(seed, LENGTHS[seed % len(LENGTHS)]), [rule]), RULES[rule]


@pytest.mark.skipif(not IS_LONG, reason="long")
def test_no_schedule_of_many_breaks_a_promise() -> None:
    _, _, found = SCHEDULES.search((), LONG_SECONDS, LENGTHS)
    assert not found, SCHEDULES.shrunk_story(found[0], ())


@pytest.mark.skipif(not IS_LONG, reason="long")
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in RARE])
def test_every_rule_is_needed(rule: str) -> None:
    assert SCHEDULES.search([rule], LONG_MUTANT_SECONDS, LENGTHS)[2], RULES[rule]
