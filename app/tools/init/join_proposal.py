"""Proposes a join from rows of impressions and of events: key, window, lateness, and which events make the label."""

# N impressions, M events
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.app.errors import UserError
from springtide.app.tools.init import name_hints as hints
from springtide.app.tools.init.column_profile import ColumnProfile, scalar_key
from springtide.app.tools.init.leaks import leak_of
from springtide.app.tools.init.proposal import Proposal, choose_timestamp
from springtide.app.tools.init.sampled_rows import SampledRows
from springtide_client.array_types import BoolArray, Int64Array
from springtide_client.system.settings import nearest

MAX_KEY_FIELDS, MAX_CANDIDATES = 3, 8
NEARLY_AS_GOOD = 0.01  # of the events: so much less is worth one field fewer in the key
LEAST_SHARE = 0.05  # of the events with an impression: below it nothing matches
GOOD_SHARE = 0.8
QUANTILES = (50, 60, 80, 90, 95, 99)
WINDOW_SHARE = 0.8  # of the events come within the window: between 60 and 90 % a model is both fresh and right
END_SHARE = 0.99  # of them come until the end
EARLY_MS, DEFAULT_LATENESS_SECONDS = 5_000, 10
LADDER_SECONDS = (
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600),
    *(3600 * hours for hours in (2, 4, 6, 12, 24, 48, 72, 7 * 24, 14 * 24, 30 * 24)),
)
DISORDER_SHARE = 0.999  # of the records are late by no more than lateness_seconds
MAX_KINDS = 20
MIN_REPEATED, MOMENT_SHARE = 20, 0.05  # of the time of all rows
KIND_WORDS = {"action", "event", "type", "kind", "name", "verb"}
SCORE_WORDS = {"score", "scores", "pred", "prediction", "predicted", "probability", "prob", "pctr", "ctr", "pclick"}


@dataclass(frozen=True)
class ProposedLabel:
    """One label: which events make it, and how long they take."""

    name: str
    topic: str
    where: dict[str, str]
    timestamp: str | None
    num_events: int  # between the first and the last impression
    matched_share: float  # of those, with an impression that has their key
    delay_ms_N: Int64Array  # from an impression to its first event, of the impressions with one; ascending
    seen_ms: int  # delays up to here could be seen
    window_seconds: int
    until_seconds: int
    first_ms_N: npt.NDArray[np.float64]  # of each impression's first event, infinite without one

    @property
    def quantiles_ms(self) -> dict[int, int]:
        """The delay by which so many percent of the events have come."""
        return {percent: int(np.quantile(self.delay_ms_N, percent / 100)) for percent in QUANTILES}

    @property
    def window_share(self) -> float:
        """F: of the events, those within the window."""
        return float(np.mean(self.delay_ms_N <= 1000 * self.window_seconds))


@dataclass(frozen=True)
class JoinProposal:
    """The sections `[join]` and `[labels.*]`."""

    key: tuple[str, ...]
    key_comment: str
    timestamp: str | None  # of the impressions
    lateness_seconds: int
    disorder_ms: int
    labels: list[ProposedLabel]
    score: str | None = None  # the impressions' field with the probability that was served
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TimedRows:
    """Rows with their times."""

    sample: SampledRows
    timestamp: str | None  # None: the times are Kafka's
    ms_N: Int64Array

    @staticmethod
    def of(sample: SampledRows) -> "TimedRows":
        """Find the rows' times; UserError if they have none."""
        columns = {name: ColumnProfile(name, [row.get(name) for row in sample.rows]) for name in sample.columns}
        found = Proposal(labels=[])
        choose_timestamp(found, columns)
        if found.timestamp is not None:
            return TimedRows(sample, found.timestamp, np.array(columns[found.timestamp].values, np.int64))
        if sample.record_ms is None:
            why = "; ".join(found.notes) or "no field holds whole milliseconds since 1970"
            raise UserError(f"{sample.origin}: a join needs the time of every row: {why}")
        return TimedRows(sample, None, np.array(sample.record_ms, np.int64))

    @property
    def disorder_ms(self) -> int:
        """How much older than the newest one before it in its partition a record is, but for 1 in 1,000."""
        behind = [np.zeros(1, np.int64)]
        partitions_N = np.array(self.sample.partitions or [0] * len(self.ms_N))
        for partition in np.unique(partitions_N):
            ms_N = self.ms_N[partitions_N == partition]
            behind.append(np.maximum.accumulate(ms_N) - ms_N)
        return int(np.quantile(np.concatenate(behind), DISORDER_SHARE))

    @property
    def span(self) -> str:
        """The times, for people."""
        first, last = (np.datetime64(int(ms), "ms") for ms in (self.ms_N.min(), self.ms_N.max()))
        return f"{first} to {last}"


def propose_join(
    shown: SampledRows, events: Sequence[tuple[str, SampledRows]], labels: Sequence[str] = ()
) -> tuple[JoinProposal, SampledRows]:
    """Return a join, and the impressions with the labels that it makes of them.

    `events`: topics with their rows. `labels`: names of those wanted. UserError says why there is no join.
    """
    impressions = TimedRows.of(shown)
    timed = [(topic, TimedRows.of(rows)) for topic, rows in events]
    for _, rows in timed:
        if rows.timestamp is None and impressions.timestamp is not None:
            raise UserError(
                f"{rows.sample.origin} has no field of times in milliseconds, and {shown.origin} has "
                f"{impressions.timestamp}: both need one, or neither (Kafka's times are taken then)"
            )
    key, key_comment, notes = choose_key(impressions, timed)
    wanted, known = [], list[str]()
    for topic, rows in timed:
        chosen, possible = choose_kinds(topic, rows, key, labels)
        wanted += [(name, topic, where, rows) for name, where in chosen]
        known += possible
    names = [name for name, *_ in wanted]
    if len(set(names)) < len(names):
        raise UserError(f"several topics would make the label {names[0]!r}: look at them one by one")
    if missing := [name for name in labels if name not in names]:
        near = nearest(missing[0], known)
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(known)}"
        raise UserError(f"--label {missing[0]}: no events make it: {hint}")
    found, joined = [], [dict(row) for row in shown.rows]
    for name, topic, where, rows in wanted:
        label = measure_label(name, topic, where, impressions, rows, key)
        found.append(label)
        clicked_N = label.first_ms_N <= impressions.ms_N + 1000 * label.window_seconds
        for row, clicked in zip(joined, clicked_N.tolist(), strict=True):
            row[name] = int(clicked)
        if label.matched_share < GOOD_SHARE:
            notes.append(
                f"{100 * (1 - label.matched_share):.0f} % of the events of {name} have no impression in these rows: "
                "they belong to others, or --rows is too small"
            )
        if label.delay_ms_N[-1] > label.seen_ms / 2:
            notes.append(
                f"delays of {name} reach as far as these rows do, {label.seen_ms / 1000:.0f} s: longer ones "
                "cannot be seen, look at more with --rows"
            )
    disorder_ms = max(rows.disorder_ms for _, rows in [("", impressions), *timed])
    lateness = next((s for s in LADDER_SECONDS if s >= DEFAULT_LATENESS_SECONDS and disorder_ms <= 1000 * s), None)
    if lateness is None:
        raise UserError(
            f"records come up to {disorder_ms / 3.6e6:.0f} hours after newer ones of their partition: a join needs "
            "records nearly in the order of their times"
        )
    scores = served_scores(shown, names)
    score = scores[0] if len(scores) == len(names) == 1 else None
    proposal = JoinProposal(key, key_comment, impressions.timestamp, lateness, disorder_ms, found, score, notes)
    return proposal, replace(shown, rows=joined)


def choose_key(
    impressions: TimedRows, events: Sequence[tuple[str, TimedRows]]
) -> tuple[tuple[str, ...], str, list[str]]:
    """Return the fewest fields by which nearly as many events as possible find exactly one impression."""
    shown = impressions.sample
    common = [name for name in shown.columns if all(name in rows.sample.columns for _, rows in events)]
    times = {rows.timestamp for rows in (impressions, *(rows for _, rows in events))}
    candidates = [name for name in common if name not in times and _is_id(shown, name)]
    if not candidates:
        fields = "; ".join(f"{rows.sample.origin} has {', '.join(rows.sample.columns)}" for _, rows in events)
        raise UserError(
            f"{shown.origin} and its events have no field in common by which they can be joined: it has "
            f"{', '.join(shown.columns)}; {fields}: their names must be equal"
        )
    codes = {name: _codes(name, shown, [rows.sample for _, rows in events]) for name in candidates}
    candidates = sorted(candidates, key=lambda name: -len(np.unique(codes[name][0])))[:MAX_CANDIDATES]
    overlap_M = np.concatenate([_overlap(impressions, rows) for _, rows in events])
    if not overlap_M.any():
        spans = ", ".join(f"{rows.sample.origin} {rows.span}" for _, rows in events)
        raise UserError(f"no event is of the time of the impressions: {shown.origin} has {impressions.span}, {spans}")
    found = []
    for num in range(1, min(MAX_KEY_FIELDS, len(candidates)) + 1):
        for names in itertools.combinations(candidates, num):
            one, any_ = _match_shares([codes[name] for name in names], overlap_M)
            found.append((one, any_, names))
    best = max(one for one, _, _ in found)
    if max(any_ for _, any_, _ in found) < LEAST_SHARE:
        shares = ", ".join(f"{'+'.join(names)} {100 * any_:.1f} %" for _, any_, names in found[:MAX_CANDIDATES])
        raise UserError(
            f"the events do not match the impressions of {shown.origin}, by their fields in common: {shares} of the "
            "events have an impression. Are these the right topics, and of the same time?"
        )
    good = [each for each in found if each[0] >= best - NEARLY_AS_GOOD]
    if best < LEAST_SHARE:  # every key is shown several times: the one that is shown least often
        good = [max(found, key=lambda each: (each[1] >= LEAST_SHARE, each[0], len(each[2])))]
    fewest = min(len(names) for _, _, names in good)
    one, any_, names = max((each for each in good if len(each[2]) == fewest), key=lambda each: each[:2])
    key = tuple(name for name in shown.columns if name in names)
    comment = f"{100 * any_:.3g} % of the events have an impression, {100 * one:.3g} % exactly one"
    notes = []
    if one < GOOD_SHARE * any_:
        notes.append(
            f"the key {'+'.join(key)} comes again in the impressions: an event counts for each within whose window "
            "it comes"
        )
    return key, comment, notes


def _is_id(sample: SampledRows, name: str) -> bool:
    values = [row.get(name) for row in sample.rows]
    column = ColumnProfile(name, values)
    return not column.lists and "object" not in column.kinds and not column.has_fractions and column.num_values > 0


def _codes(name: str, shown: SampledRows, events: Sequence[SampledRows]) -> tuple[Int64Array, Int64Array]:
    """Numbers of a field's values in the impressions (N) and in all events (M); -1 where it is null."""
    numbers: dict[str, int] = {}

    def coded(rows: Sequence[Mapping[str, Any]]) -> list[int]:
        values = (row.get(name) for row in rows)
        return [-1 if v is None else numbers.setdefault(scalar_key(v), len(numbers)) for v in values]

    return np.array(coded(shown.rows)), np.array([code for rows in events for code in coded(rows.rows)], np.int64)


def _combined(codes: Sequence[tuple[Int64Array, Int64Array]]) -> tuple[Int64Array, Int64Array]:
    """The numbers of several fields as one, of impressions and of events; -1 where one is null."""
    num = len(codes[0][0])
    combined, is_null = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    for shown_N, event_M in codes:
        both = np.concatenate([shown_N, event_M])
        is_null = both < 0 if not len(is_null) else is_null | (both < 0)
        combined = both if not len(combined) else combined * (both.max() + 2) + both
        combined = np.unique(combined, return_inverse=True)[1].astype(np.int64)
    combined[is_null] = -1
    return combined[:num], combined[num:]


def _match_shares(codes: Sequence[tuple[Int64Array, Int64Array]], overlap_M: BoolArray) -> tuple[float, float]:
    """The share of events with exactly one impression, and with any."""
    shown_N, event_M = _combined(codes)
    counts = np.bincount(shown_N[shown_N >= 0], minlength=max(int(event_M.max(initial=0)), 0) + 1)
    found_M = np.where(event_M >= 0, counts[np.maximum(event_M, 0)], 0)[overlap_M]
    return float(np.mean(found_M == 1)), float(np.mean(found_M > 0))


def _overlap(impressions: TimedRows, events: TimedRows) -> BoolArray:
    """Which events came between the first and the last impression."""
    first, last = impressions.ms_N.min(), impressions.ms_N.max()
    overlap_M: BoolArray = (events.ms_N >= first) & (events.ms_N <= last + EARLY_MS)
    return overlap_M


def choose_kinds(
    topic: str, rows: TimedRows, key: Sequence[str], labels: Sequence[str]
) -> tuple[list[tuple[str, dict[str, str]]], list[str]]:
    """Return the labels that a topic's events make, with what those of each have in common; and all that they could.

    A field with a few values whose name says that it is a kind makes one of each; UserError asks which are labels.
    """
    sample = rows.sample
    for name in sample.columns:
        column = ColumnProfile(name, [row.get(name) for row in sample.rows])
        is_kind = name not in key and name != rows.timestamp and hints.has_word(name, KIND_WORDS)
        if not is_kind or not column.has_only("text") or column.num_distinct > MAX_KINDS:
            continue
        kinds = {_label_name(kind): kind for kind in column.counts}
        chosen = [kind for kind in kinds if hints.is_named(kind, hints.LABELS) or len(kinds) == 1]
        if labels:
            chosen = [label for label in labels if label in kinds]
        elif not chosen:
            raise UserError(
                f"{sample.origin} has events of several kinds, by {name}: {', '.join(kinds)}: which are labels? "
                "Name them with --label (repeatable)"
            )
        return [(label, {name: kinds[label]}) for label in chosen], list(kinds)
    only = _label_name(topic)
    return [(only, {})] if not labels or only in labels else [], [only]


def _label_name(text: str) -> str:
    """A topic or a kind as the name of a label: `shop.clicks` is `click`."""
    words = hints.words_of(text) or ["label"]
    last = words[-1]
    plain = last[:-1] if last.endswith("s") and not last.endswith("ss") and len(last) > 3 else last
    return "_".join([*words[:-1], plain]) if plain not in hints.LABELS else plain


def measure_label(
    name: str,
    topic: str,
    where: dict[str, str],
    impressions: TimedRows,
    events: TimedRows,
    key: Sequence[str],
) -> ProposedLabel:
    """Return how long a label's events take."""
    kept = [n for n, row in enumerate(events.sample.rows) if all(row.get(k) == v for k, v in where.items())]
    sample = replace(events.sample, rows=[events.sample.rows[n] for n in kept])
    event_ms_M = events.ms_N[kept]
    shown_N, event_M = _combined([_codes(field, impressions.sample, [sample]) for field in key])
    times: dict[int, list[tuple[int, int]]] = {}
    for n, (code, ms) in enumerate(zip(shown_N.tolist(), impressions.ms_N.tolist(), strict=True)):
        if code >= 0:
            times.setdefault(code, []).append((ms, n))
    for each in times.values():
        each.sort()
    first_ms_N = np.full(len(shown_N), np.inf)
    is_matched_M = np.zeros(len(event_M), np.bool_)
    for m, (code, ms) in enumerate(zip(event_M.tolist(), event_ms_M.tolist(), strict=True)):
        before = [n for shown_ms, n in times.get(code, ()) if shown_ms <= ms + EARLY_MS]
        if before:  # the last one that was shown
            is_matched_M[m] = True
            first_ms_N[before[-1]] = min(first_ms_N[before[-1]], ms)
    overlap_M = _overlap(impressions, replace(events, ms_N=event_ms_M))
    last_ms = int(event_ms_M.max(initial=0))
    # long delays are seen of impressions alone that were shown well before the rows end
    first_shown_ms = int(impressions.ms_N.min())
    middle_ms = first_shown_ms + (min(last_ms, int(impressions.ms_N.max())) - first_shown_ms) // 2
    is_seen_N = np.isfinite(first_ms_N) & (impressions.ms_N <= middle_ms)
    if not is_seen_N.any():
        raise UserError(
            f"no impression of the first half of {impressions.sample.origin} has an event of {name} in "
            f"{events.sample.origin}: their delays cannot be seen, look at more with --rows"
        )
    delay_ms_N = np.sort((first_ms_N - impressions.ms_N)[is_seen_N].astype(np.int64))
    return ProposedLabel(
        name=name,
        topic=topic,
        where=where,
        timestamp=events.timestamp,
        num_events=int(overlap_M.sum()),
        matched_share=float(is_matched_M[overlap_M].mean()) if overlap_M.any() else 0.0,
        delay_ms_N=delay_ms_N,
        seen_ms=last_ms - middle_ms,
        window_seconds=_round_seconds(delay_ms_N, WINDOW_SHARE),
        until_seconds=_round_seconds(delay_ms_N, END_SHARE),
        first_ms_N=first_ms_N,
    )


def _round_seconds(delay_ms_N: Int64Array, share: float) -> int:
    """The smallest round time within which this share of the events come."""
    needed_ms = np.quantile(delay_ms_N, share)
    return next((s for s in LADDER_SECONDS if needed_ms <= 1000 * s), LADDER_SECONDS[-1])


def leave_out(proposal: Proposal, join: JoinProposal, sample: SampledRows) -> None:
    """Take from the features what a join has another use for, and scores that were served, which are no features."""
    for name in join.key:
        reason = "part of the key" if proposal.roles.get(name) == "dense" else ""
        if _is_of_a_moment(TimedRows.of(sample), name):
            reason = "part of the key; its values are of a moment each, as a request's are, and never come again"
        if reason and proposal.roles.pop(name, None) is not None:
            proposal.left_out[name] = reason
    for label in join.labels:  # what is known with an event that comes after the window is a leak too
        clicked = np.isfinite(label.first_ms_N).astype(np.float64).tolist()
        for name in list(proposal.roles):
            leak = leak_of(ColumnProfile(name, [row.get(name) for row in sample.rows]), clicked)
            if leak:
                del proposal.roles[name]
                proposal.leaks[name] = leak.replace("the label", label.name)
    for name in served_scores(sample, proposal.labels):
        if proposal.roles.pop(name, None) is not None:
            proposal.left_out[name] = "the score by which the impression was served? It learned from the same clicks"
            proposal.notes.append(
                f"{name} is left out: it seems to be the score by which impressions were served, which is never a "
                "feature of the label that it predicts"
            )


def _is_of_a_moment(rows: TimedRows, name: str) -> bool:
    """Return True if nearly all values of a field that come more than once do so within a moment."""
    codes_N, _ = _codes(name, rows.sample, [])
    order = np.lexsort((rows.ms_N, codes_N))
    codes, ms = codes_N[order], rows.ms_N[order]
    starts = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
    lengths = np.diff(starts, append=len(codes))
    spans_ms = (np.maximum.reduceat(ms, starts) - np.minimum.reduceat(ms, starts))[lengths > 1]
    moment_ms = MOMENT_SHARE * (rows.ms_N.max() - rows.ms_N.min())
    return len(spans_ms) >= MIN_REPEATED and bool(np.mean(spans_ms <= moment_ms) >= END_SHARE)


def served_scores(sample: SampledRows, labels: Sequence[str]) -> list[str]:
    """Return the fields that seem to be the score by which an impression was served."""
    found = []
    for name in sample.columns:
        column = ColumnProfile(name, [row.get(name) for row in sample.rows])
        is_share = column.least is not None and column.most is not None and 0 <= column.least <= column.most <= 1
        if name not in labels and hints.has_word(name, SCORE_WORDS) and column.has_fractions and is_share:
            found.append(name)
    return found
