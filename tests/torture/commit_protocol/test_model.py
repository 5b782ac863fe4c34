"""The executable model of the commit protocol breaks no promise under its rules, and breaks without them."""

import pytest

from tests.support.scale import IS_LONG
from tests.torture.commit_protocol.model.rules import RULES
from tests.torture.commit_protocol.model.schedules import SCHEDULES

SHORT_SCHEDULES = 60
LONG_SECONDS, LONG_MUTANT_SECONDS = 120.0, 120.0
LENGTHS = (120, 300, 700)
RARE = ("claim-fsync", "recall-pins")  # not missed in 1,641 schedules, nor in 40,000
# rules without which one of the first schedules breaks, by its seed; the long form tries every rule
QUICK = {
    "side-buffer": 2,
    "newest-copy": 0,
    "cut-between-batches": 40,
    "changed-after-restart": 7,
    "own-spill": 2,
    "queue-first": 0,
    "generation-at-cut": 63,
    "generation-covered": 5,
    "recall-yields": 11,
    "forget-mark": 2,
    "horizon-everywhere": 59,
    "horizon-clamp": 2,
    "one-step": 8,
    "numbers-grow": 1,
    "written-is-seen": 1,
    "all-reported": 5,
    "in-order": 8,
    "new-file-after-torn": 35,
    "fsync-in-order": 20,
    "folder-fsync": 0,
    "durable-main": 49,
    "durable-looks": 2,
    "claim-first": 2,
    "seal-fsync-main": 5,
    "seal-fsync-shards": 1,
    "seal-whole": 14,
    "base-covers": 20,
    "sealed-only": 2,
    "load-to-head": 2,
    "rows-from-all": 5,
    "positions-from-all": 5,
    "load-again": 62,
    "parent": 11,
    "shard-checksum": 9,
    "whole-version": 9,
    "base-above": 37,
    "swap-when-caught-up": 5,
    "base-whole": 53,
    "base-fsync": 2,
    "retire-oldest-kept": 5,
    "retire-not-newest": 2,
    "retire-own-records": 8,
    "forget-writes": 8,
    "order-in-base": 5,
    "rollback-published": 2,
    "rollback-one-target": 20,
    "rollback-forgets": 2,
    "rollback-orders": 2,
    "state-at-cut": 23,
    "cut-back": 2,
    "durable-exact": 2,
    "state-fsync": 35,
    "base-exact": 35,
    "restore-exact": 23,
    "dense-carried": 1,
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
