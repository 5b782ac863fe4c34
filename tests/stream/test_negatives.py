"""Which negatives are kept, what is counted of the others, and what the settings may not say."""

import dataclasses
import json

import numpy as np
import pytest

from springtide.stream.batcher import Batcher
from springtide.stream.columns import Columns, RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.negatives import NegativeSampling, NegativesConfig
from springtide.stream.positions import Partition
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("click",), categorical=("user", "item"))
CLICKS = Partition("clicks", 0)
NOW_MS = 1_700_000_000_000


def records(start: int, stop: int) -> list[bytes]:
    return [
        json.dumps({"user": n % 50, "item": n, "request": f"r{n}", "click": int(n % 20 == 3)}).encode()
        for n in range(start, stop)
    ]


def decoded(start: int, stop: int, sampling: NegativeSampling, schema: Schema = SCHEMA) -> Columns:
    decoder = Decoder(schema, DecodeConfig(sample_by=sampling.by, rate_field=sampling.rate_field))
    raw = RawRecords.from_messages(CLICKS, records(start, stop), offsets=range(start, stop), end=stop)
    return decoder.decode(raw, NOW_MS)


def sampling_of(schema: Schema = SCHEMA, **settings: object) -> NegativeSampling:
    sampling = NegativeSampling.of(NegativesConfig(**settings), schema)
    assert sampling is not None
    return sampling


def test_positives_stay_and_a_share_of_the_negatives_that_a_replay_finds_again():
    sampling = sampling_of(rate=0.1, by=("request", "item"))
    columns = decoded(0, 20_000, sampling)
    kept = sampling.drop(columns)
    items = kept.features.categorical_NC[:, 1]
    assert set(np.flatnonzero(np.arange(20_000) % 20 == 3)) <= set(items.tolist())
    num_negatives = int((kept.labels_NL == 0).sum())
    assert abs(num_negatives - 1900) < 4 * np.sqrt(1900)
    assert kept.sampled.num_dropped == 19_000 - num_negatives
    assert (kept.sampled.rates_N == np.float32(0.1)).all()
    parts = [sampling.drop(decoded(start, start + 500, sampling)) for start in range(0, 20_000, 500)]
    assert np.concatenate([part.features.categorical_NC[:, 1] for part in parts]).tolist() == items.tolist()


def test_a_lower_rate_keeps_a_part_of_what_a_higher_one_keeps():
    kept = []
    for rate in (0.05, 0.3):
        sampling = sampling_of(rate=rate, by=("request",))
        kept.append(set(sampling.drop(decoded(0, 5000, sampling)).offset_N.tolist()))
    assert kept[0] < kept[1]


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_positions_pass_what_is_dropped_and_each_is_counted_once(batch_size):
    sampling = sampling_of(rate=0.2, by=("item",))
    whole = sampling.drop(decoded(0, 1000, sampling))
    batcher = Batcher(batch_size, float("inf"))
    for start in range(0, 1000, 100):
        batcher.add(sampling.drop(decoded(start, start + 100, sampling)))
    num_dropped = at = 0
    offsets = []
    while (batch := batcher.flush()) is not None:
        at = batch.positions.get(CLICKS, at)
        num_dropped += batch.num_dropped
        offsets += batch.features.categorical_NC[:, 1].tolist()
        # what a restart from here would find: the rest, neither more nor less
        rest = sampling.drop(decoded(at, 1000, sampling))
        assert num_dropped + rest.sampled.num_dropped == whole.sampled.num_dropped
        assert len(offsets) + len(rest) == len(whole)
        assert len(batch.rates_N) == len(batch)
    assert at == 1000
    assert num_dropped == whole.sampled.num_dropped == 1000 - len(whole)


def test_masked_and_fractional_labels_are_no_negatives():
    schema = Schema(labels=("click", "order"), categorical=("item",))
    sampling = sampling_of(schema, rate=1e-9, label="click", by=("item",))
    labels = [{"click": 0}, {"click": None, "order": 0}, {"click": 0.25}, {"click": 1}, {"click": 0, "order": 1}]
    raw = RawRecords.from_messages(CLICKS, [json.dumps({"item": n, **each}).encode() for n, each in enumerate(labels)])
    columns = Decoder(schema, DecodeConfig(sample_by=sampling.by)).decode(raw, NOW_MS)
    kept = sampling.drop(columns)
    assert kept.offset_N.tolist() == [1, 2, 3]
    assert kept.sampled.num_dropped == 2


def test_the_senders_rate_and_ones_own_multiply():
    sampling = sampling_of(rate=0.5, by=("item",), rate_field="kept")
    messages = [json.dumps({"item": n, "click": 1, "kept": 0.25}).encode() for n in range(3)]
    columns = Decoder(SCHEMA, DecodeConfig(sample_by=("item",), rate_field="kept")).decode(
        RawRecords.from_messages(CLICKS, messages), NOW_MS
    )
    assert sampling.drop(columns).sampled.rates_N.tolist() == [0.125] * 3


def test_all_negatives_are_learned_where_nothing_is_set():
    assert NegativeSampling.of(NegativesConfig(), SCHEMA) is None
    assert NegativeSampling.of(NegativesConfig(by=("item",), method="weights"), SCHEMA) is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"rate": 0.1}, "needs by"),
        ({"rate": 0.1, "by": ("item", "item")}, "twice"),
        ({"rate": 0.1, "by": ("click",)}, "must be an id"),
        ({"rate": 0.1, "by": ("item",), "label": "order"}, "must be one of click"),
        ({"rate_field": "item"}, "another role"),
        ({"rate": 0.1, "by": ("kept",), "rate_field": "kept"}, "must be an id"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        NegativeSampling.of(NegativesConfig(**settings), SCHEMA)


def test_of_several_labels_one_is_named_and_none_that_is_a_value():
    schema = Schema(labels=("click", "dwell"), links={"dwell": "identity"}, categorical=("item",))
    with pytest.raises(ValueError, match="needs label: one of click, dwell"):
        NegativeSampling.of(NegativesConfig(rate=0.1, by=("item",)), schema)
    with pytest.raises(ValueError, match="is a value"):
        NegativeSampling.of(NegativesConfig(rate=0.1, by=("item",), label="dwell"), schema)


def test_a_join_says_by_what_negatives_are_kept():
    sampling = NegativeSampling.of(NegativesConfig(rate=0.1), SCHEMA, ("request", "item"))
    assert sampling == dataclasses.replace(sampling_of(rate=0.1, by=("item",)), by=("request", "item"))
