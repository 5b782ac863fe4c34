"""Joins that are proposed for impressions and events, and one line of what is wrong where none can be."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from springtide.app.errors import UserError
from springtide.app.tools.init.join_proposal import JoinProposal, leave_out, propose_join
from springtide.app.tools.init.proposal import Proposal, propose
from springtide.app.tools.init.proposal_text import format_proposal, try_proposal
from springtide.app.tools.init.sampled_rows import SampledRows

TS, STEP_MS = 1_700_000_000_000, 1_000
Row = dict[str, Any]


def sampled(rows: list[Row], origin: str = "rows") -> SampledRows:
    return SampledRows(origin, rows, [json.dumps(row).encode() for row in rows], 0, is_whole=True)


def traffic(num: int = 2_000, mean_ms: float = 60_000, **fields: Callable[[int], Any]) -> tuple[list[Row], list[Row]]:
    """Requests of four items each; a third of the impressions is clicked, after an exponential delay."""
    draw, shown, clicks = random.Random(0), [], []
    for n in range(num):
        ids = {"request_id": f"r{n // 4}", "item_id": n * 7 % 101}
        more = {name: field(n) for name, field in fields.items()}
        shown.append({"ts": TS + n * STEP_MS, **ids, "user_id": n // 4 % 90, **more})
        if draw.random() < 1 / 3:
            ms = TS + n * STEP_MS + round(draw.expovariate(1 / mean_ms))
            clicks.append({"ts": ms, "request_id": ids["request_id"], "item_id": str(ids["item_id"])})
    return shown, sorted(clicks, key=lambda click: click["ts"])


def proposed(shown: list[Row], events: list[Row], *labels: str, topic: str = "clicks") -> JoinProposal:
    return propose_join(sampled(shown, "impressions"), [(topic, sampled(events, topic))], labels)[0]


def test_the_key_is_of_the_fewest_fields_with_exactly_one_impression() -> None:
    shown, clicks = traffic()
    assert proposed(shown, clicks).key == ("request_id", "item_id")
    for n, row in enumerate(shown):
        row["impression_id"] = n
    places = {(row["request_id"], str(row["item_id"])): n for n, row in enumerate(shown)}
    for click in clicks:
        click["impression_id"] = str(places[click["request_id"], click["item_id"]])
    assert proposed(shown, clicks).key == ("impression_id",)


def test_the_window_holds_four_fifths_of_the_events_and_the_end_nearly_all() -> None:
    join = proposed(*traffic())
    [label] = join.labels
    assert (label.name, label.topic, label.where, label.timestamp) == ("click", "clicks", {}, "ts")
    assert label.quantiles_ms[50] == pytest.approx(np.log(2) * 60_000, rel=0.15)
    assert label.window_seconds == 120  # 97 s hold 80 %
    assert 0.8 <= label.window_share <= 0.9
    assert label.until_seconds == 300  # 276 s hold 99 %
    assert label.matched_share > 0.9
    assert join.lateness_seconds == 10
    assert join.notes == []


def test_lateness_is_the_disorder_of_each_partition() -> None:
    shown, clicks = traffic()
    for first in range(0, 2_000, 100):
        shown[first], shown[first + 40] = shown[first + 40], shown[first]
    assert proposed(shown, clicks).lateness_seconds == 60
    apart = replace(
        sampled(sorted(shown, key=lambda row: (row["ts"] % 2_000, row["ts"]))), partitions=[0] * 1_000 + [1] * 1_000
    )
    join, _ = propose_join(apart, [("clicks", sampled(clicks))])
    assert join.lateness_seconds == 10


def test_events_of_several_kinds_are_told_apart_and_an_unclear_choice_is_asked() -> None:
    shown, clicks = traffic()
    events = [click | {"action": "click"} for click in clicks]
    assert proposed(shown, events).labels[0].where == {"action": "click"}
    events += [event | {"action": "order"} for event in events[::3]]
    [label] = proposed(shown, events).labels
    assert (label.name, label.where) == ("click", {"action": "click"})
    both = proposed(shown, events, "order", "click").labels
    assert [(each.name, each.where) for each in both] == [
        ("order", {"action": "order"}),
        ("click", {"action": "click"}),
    ]
    assert both[0].num_events < both[1].num_events
    for event in events:
        event["action"] = {"click": "open", "order": "order"}[event["action"]]
    with pytest.raises(UserError, match="several kinds, by action: open, order: which are labels"):
        proposed(shown, events)
    with pytest.raises(UserError, match="--label opn: no events make it"):
        proposed(shown, events, "open", "opn")


def test_a_served_score_a_leak_and_the_id_of_a_request_are_no_features() -> None:
    shown, clicks = traffic(
        score=lambda n: (n * 37 % 100) / 100, price=lambda n: n % 50 / 7, age=lambda n: 20 + n * 13 % 50
    )
    clicked = {(click["request_id"], click["item_id"]) for click in clicks}
    for row in shown:
        row["opened"] = 1 if (row["request_id"], str(row["item_id"])) in clicked else 0
    join, rows = propose_join(sampled(shown), [("clicks", sampled(clicks))])
    proposal = propose(rows, ["click"])
    leave_out(proposal, join, rows)
    assert proposal.roles == {"item_id": "categorical", "user_id": "categorical", "price": "dense", "age": "dense"}
    assert proposal.leaks == {"opened": "determines click alone"}
    assert "served" in proposal.left_out["score"]
    assert "a moment each" in proposal.left_out["request_id"]
    assert any("score is left out" in note for note in proposal.notes)
    text = text_of(join, rows, sampled(clicks, "clicks"))
    assert 'score = "score"' in text
    assert try_proposal(text, rows, {"clicks": sampled(clicks, "clicks")}) == []


def text_of(join: JoinProposal, rows: SampledRows, events: SampledRows) -> str:
    proposal: Proposal = propose(rows, [label.name for label in join.labels])
    leave_out(proposal, join, rows)
    names = {"name": "shop", "topic": "impressions", "bootstrap_servers": None, "written_to": "springtide.toml"}
    return format_proposal(proposal, rows, join=join, events=[events], **names)


def test_the_text_says_what_was_measured_and_decodes_all_rows() -> None:
    shown, clicks = traffic()
    for click in clicks:
        click["at"] = click.pop("ts")
        click["action"] = "click"
    events = sampled(clicks, "clicks.jsonl")
    join, rows = propose_join(sampled(shown, "shown.jsonl"), [("clicks", events)])
    text = text_of(join, rows, events)
    assert 'key = ["request_id", "item_id"]' in text
    assert '[labels.click]\ntopic = "clicks"' in text
    assert 'where = { action = "click" }\ntimestamp = "at"\n# from the impression to the event: 50 % ' in text
    assert "window_seconds = 120" in text
    assert "\nuntil_seconds = 300" in text
    assert "of the events come within it" in text
    assert try_proposal(text, rows, {"clicks": events}) == []
    broken = replace(events, messages=[*events.messages, b'{"action": "click"}'])
    assert "clicks.jsonl: 1 of" in try_proposal(text, rows, {"clicks": broken})[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"request_id": "req", "item_id": "item"}, "no field in common.*their names must be equal"),
        ({"ts": "time_text"}, "clicks has no field of times|clicks: a join needs the time of every row"),
    ],
)
def test_what_cannot_be_joined_is_said_in_a_line(change: dict[str, str], words: str) -> None:
    shown, clicks = traffic(200)
    renamed = [{change.get(name, name): value for name, value in click.items()} for click in clicks]
    for click in renamed:
        if "time_text" in click:
            click["time_text"] = "today"
    with pytest.raises(UserError, match=words):
        proposed(shown, renamed)


def test_events_of_other_impressions_or_of_another_time_are_refused() -> None:
    shown, clicks = traffic(400)
    other = [click | {"request_id": f"x{n}", "item_id": f"y{n}"} for n, click in enumerate(clicks)]
    with pytest.raises(UserError, match=r"do not match the impressions.*request_id 0.0 %.*the right topics"):
        proposed(shown, other)
    later = [click | {"ts": click["ts"] + 10**9} for click in clicks]
    with pytest.raises(UserError, match=r"no event is of the time of the impressions: .* 2023-11-14"):
        proposed(shown, later)


def test_few_matches_and_delays_beyond_the_rows_are_noted() -> None:
    shown, clicks = traffic(2_000)
    others = [click | {"request_id": f"x{n}", "item_id": f"y{n}"} for n, click in enumerate(clicks)]
    [note] = proposed(shown, sorted(clicks + others, key=lambda click: click["ts"])).notes
    assert "have no impression in these rows" in note
    notes = proposed(*traffic(2_000, mean_ms=800_000)).notes
    assert any("longer ones cannot be seen" in note for note in notes)
