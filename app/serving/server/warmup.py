"""Warm-up: call every compiled lookup kernel once before the first request, because loading one takes a while."""

import numpy as np

from springtide.app.serving.http.route import JSON, MSGPACK
from springtide.app.serving.lookup.codecs import MAX_NUMBERS_HOLDING_GIL, decode_request, encode_response
from springtide.app.serving.lookup.content_negotiation import MediaType
from springtide.app.serving.lookup.neighbors import measure_similarity
from springtide.kernels.cpu.counter_rows import read_numbers
from springtide.kernels.cpu.serving.key_owners import first_foreign, owner_of, place_rows, split_keys
from springtide.kernels.cpu.serving.layer_merge import merge_sorted
from springtide.kernels.cpu.serving.layer_search import FEW_KEYS, LayerSearchCache
from springtide.kernels.cpu.serving.wide_steps import compiled_steps
from springtide_client.counters import Counter
from springtide_client.features import Features
from springtide_client.rows.admission_counts import AdmissionCounts
from springtide_client.rows.row_block import RowBlock
from springtide_client.rows.search import LayerStack
from springtide_client.schema import Schema
from springtide_client.wide.fields import WideFields
from springtide_client.wide.layout import wide_width
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.score import WideRows


def warm_up() -> None:
    """Answer invented requests: few and many keys, raw and as text."""
    ids_N = np.arange(max(FEW_KEYS, MAX_NUMBERS_HOLDING_GIL) + 1)
    feature = np.zeros(1, np.uint16)
    rows = RowBlock.of_keys(feature, ids_N[:1], 1)
    search = LayerSearchCache()(
        LayerStack((rows, rows), 1, {}, {"0": 2}, AdmissionCounts(1, np.zeros((1, 64), np.uint8)), 0)
    )
    merge_sorted(rows, rows)
    warm_up_wide_steps()
    warm_up_counters()
    measure_similarity(rows, 0, 0, np.zeros(1, np.float32), "dot")
    for requested_N in (np.frombuffer(bytes(8), "<i8"), ids_N[:1], ids_N):
        search.packed(feature, requested_N)
        first_foreign(0, requested_N, 0, 1)
        split_keys(feature, requested_N, 1)
        split_keys(feature.repeat(len(requested_N)), requested_N, 1)
    bytes_B = np.zeros(5, np.uint8)
    place_rows(bytes_B, ids_N[:1], ids_N[:2], 4, bytes_B.copy())
    owner_of(0, 0, 1)
    decode_request(MediaType(MSGPACK), b"\x81\xa3ids\x91\x00", 1)
    decode_request(MediaType(JSON), b'{"ids":["a"]}', 1)
    request = decode_request(MediaType(JSON), b'{"ids":[0]}', 1)
    for requested_N in (request.ids_N, ids_N):
        encode_response(MediaType(JSON), request, *search(feature, requested_N), feature="", version=0)


def warm_up_wide_steps() -> None:
    """Score no sample."""
    schema = Schema(labels=("label",), categorical=("id",))
    parameters = WideParameters.initial(WideFields.of(schema), 0, 1)
    none = np.empty(0, np.int64)
    features = Features(np.empty((0, 1), np.int64), (), np.empty((0, 0), np.float32))
    rows = WideRows(np.empty((0, 1), np.float32), np.empty((0, wide_width(1)), np.float32), none)
    steps = compiled_steps()
    x_NX, _ = steps.numbers(features.dense_NF, parameters.number_statistics_3D)
    slots, crosses = steps.slots(schema, features, parameters, np.empty(0, np.uint16), none, rows.wide_UW)
    steps.score(parameters, slots, rows, crosses, np.empty((0, 2), np.float32), x_NX, np.empty((0, 1)))


def warm_up_counters() -> None:
    """Read no row."""
    counter = Counter(name="id", key=("id",), count=("shown",), half_lives=("1h",), numbers=("age",))
    rows_0D = np.empty((0, counter.dim), np.float32)
    read_numbers(rows_0D, counter, np.empty(0, np.int64), None, np.empty(0, np.bool_))


if __name__ == "__main__":
    warm_up()
