"""The wide part's step: between the net's forward and backward pass it scores and learns a batch, sample by sample."""

# N samples, K keys, U rows, C crosses, Q rows of crosses, D dimension, S state width, L labels
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.app.models.losses.config import LabelLoss
from springtide.app.models.wide_part import WidePart
from springtide.app.training.step.batch_keys import BatchKeys
from springtide.app.training.step.sample_weights import SampleWeights
from springtide.app.version_log.change.plan import CROSSES_TABLE
from springtide.embeddings.collection import AnyTable
from springtide.embeddings.lookup.handle import Lookup
from springtide.embeddings.sharding.sharded_table import ShardedTable
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from springtide.kernels.cpu.wide.arrays import (
    ALL_COUNTED,
    NO_SHARES,
    NO_WEIGHTS,
    NONE_SETTLED,
    CrossBatch,
    WideBatch,
)
from springtide.kernels.cpu.wide.in_order import in_order_pass
from springtide.kernels.cpu.wide.prepare import (
    cross_weights,
    crosses_of,
    fields_of,
    list_offsets,
    prepare_batch,
    repeated,
)
from springtide.kernels.row_optimizers import OPTIMIZERS
from springtide.kernels.types import RowColumns
from springtide.stream.columns import Batch
from springtide.stream.negatives import NegativeSampling
from springtide_client.keys import CROSSES, MISSING_ID
from springtide_client.schema import Schema
from springtide_client.wide.slots import Slots, num_crossed, slot_weights

MAX_CROSSES = 1 << 18  # looked up at once
MIN_SAMPLES_AHEAD = 512  # of a batch that is prepared by a thread of its own, where its rows are on the host
CHOICE_SAMPLES = 500  # samples between two choices of pairs
FACTORIZATION_RATE = 1.2  # of the table's learning rate, which is the net's for its rows
FACTORIZATION_EPS = 0.05

Float32Array = npt.NDArray[np.float32]
NO_ENDS = np.zeros(0, np.int64)


class WideScores(NamedTuple):
    """What the step returns, float32 (N, L)."""

    logits_NL: Float32Array  # each sample's, once those before it were learned
    errors_NL: Float32Array  # derivatives of their logistic loss by the net's logits; of labels from 0 to 1
    scored_NL: Float32Array  # logits from before any sample of the same request was learned, if that matters


# scores and learns a batch given the net's logits, float32 (N, L)
OffsetStep = Callable[[Float32Array], WideScores]


class HostRows(NamedTuple):
    """The rows of a lookup's unique keys on the host, and what their crosses are made of."""

    features_U: npt.NDArray[np.uint16]
    ids_U: npt.NDArray[np.int64]
    inverse_K: npt.NDArray[np.int64]
    columns: RowColumns


class WideStep:
    """Learns the wide part over a table's rows, on the host wherever the table is.

    The rows of a table on a device come to the host once a batch and go back; crosses have a table of the host.
    """

    is_of_ranks = False  # True: the batch is a rank's part of samples that many ranks learn together

    def __init__(
        self,
        part: WidePart,
        table: AnyTable,
        schema: Schema,
        *,
        num_threads: int = 1,
        negatives: NegativeSampling | None = None,
        by_request: bool = False,
    ) -> None:
        """`num_threads`: of a large step; with one all work is the caller's. `negatives`: how they are sampled.

        `by_request`: the samples of a request that follow each other are scored before any of them is learned.
        """
        self.negatives, self.by_request = negatives, by_request
        self.part, self.table, self.schema = part, table, schema
        self.arrays = part.arrays  # over the memory of the part's buffers, which stays: they are restored in place
        self.num_labels = len(schema.labels)
        self.is_value_L = np.array([link != "logit" for link in schema.label_links])  # the net's alone
        self._has_values = bool(self.is_value_L.any())
        self.is_settled_L = NONE_SETTLED  # labels whose impressions are learned again once no more events count
        self._fields_F3 = fields_of(schema)
        self._features_C = np.empty(0, np.uint16)  # of keys of crosses, as many as were needed so far
        self._ops = backend("cpu")  # with scratch of its own: the table's is used by another thread meanwhile
        self.num_crosses = 0  # rows that the newest batch looked up
        self.crosses = table.tables.get(CROSSES_TABLE)
        if self.crosses is None and part.get_buffer("pair_is_live_P").numel():
            raise ValueError("the wide part crosses fields, and there is no table for their rows")
        if self.crosses is not None and self.crosses.ops.device != "cpu":
            raise ValueError("the wide part learns crosses on the host: make their table there")
        self.is_on_host = table.ops.device == "cpu"
        self._least_ahead = MIN_SAMPLES_AHEAD if self.is_on_host else 1
        has_thread = not self.is_of_ranks and (num_threads > 1 or not self.is_on_host)
        self._thread = ThreadPoolExecutor(1, "wide-part") if has_thread else None
        self._preparing: Future[PreparedBatch] | None = None  # of the newest batch, until `join`
        self.crosses_of_all: EmbeddingTable | ShardedTable | None = self.crosses  # with the rows of other ranks
        self.columns_from = table.layout.state_width - table.layout.wide_width
        # the factorization machine steps with the rows' own state; other optimizers, and rows of several widths, leave
        # vectors to the net alone
        self.steps_rows = _sums_row_squares(table) and len({one.dim for one in table.model_tables.values()}) == 1

    def set_late_rules(self, losses: Sequence[LabelLoss]) -> None:
        """Note the labels of which samples say a share of events within the window, and how they are weighed by it."""
        self.is_settled_L = np.array([loss.late == "settle" for loss in losses], np.uint8)

    @staticmethod
    def num_states_of(table: AnyTable) -> int:
        """Return how many of a row's last state columns the step reads: those of the wide part, and before them the
        factorization machine's.
        """
        return table.layout.wide_width + _sums_row_squares(table)

    def max_crosses(self, batch: Batch) -> int:
        """Return the most crosses that this batch may look up, every occurrence."""
        arrays = self.arrays
        most = len(batch) * len(arrays.live_pairs)
        if self.schema.lists:
            pairs_P2 = arrays.pair_fields_P2[arrays.live_pairs]
            counts_NF = num_crossed(self.schema, batch.features).astype(np.float64)
            # of one sample, over all samples; no BLAS product, whose threads would spin for 20 ms afterwards
            counts_FF = np.einsum("nf,ng->fg", counts_NF, counts_NF, optimize=False)
            most = int(counts_FF[pairs_P2[:, 0], pairs_P2[:, 1]].sum())
        return most

    def begin(self, keys: BatchKeys, lookup: Lookup) -> OffsetStep:
        """Return what the net calls with its logits: `learn`, of a batch that is prepared while the net computes them.

        That needs a thread, and pays for large batches only, or where the rows come from a device. What is learned is
        the same: a batch is prepared from what was known before it.
        """
        if self._thread is None or len(keys.batch) < self._least_ahead:
            return partial(self.learn, keys, lookup)
        prepared = self._preparing = self._thread.submit(self.prepare, keys, lookup, self._start_reading(lookup))
        return lambda net_NL: self.walk(prepared.result(), net_NL)

    def join(self) -> None:
        """Wait until the thread no longer reads the rows of the newest `begin`; they may be released then.

        It may still do so where the step has raised before it called what `begin` returned. Raises nothing.
        """
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            wait_for([preparing])

    def learn(self, keys: BatchKeys, lookup: Lookup, net_NL: Float32Array) -> WideScores:
        """Score and learn a batch given the net's logits. Its rows are looked up; at the end they are written back."""
        return self.walk(self.prepare(keys, lookup), net_NL)

    def prepare(
        self, keys: BatchKeys, lookup: Lookup, reading: Callable[[], HostRows] | None = None
    ) -> "PreparedBatch":
        """Do what needs no logit of the net: find slots and crosses, look up their rows.

        `reading`: what `_start_reading` returned.
        """
        assert keys.numbers is not None
        batch, rows = keys.batch, (reading or self._start_reading(lookup))()
        slots, usable_from_U, hashes_U, potential_N = prepare_batch(
            self._fields_F3,
            batch.features.categorical_NC.shape[1],
            len(self.schema.dense) + len(self.schema.bias),
            list_offsets(batch.features),
            rows.inverse_K,
            rows.features_U,
            rows.ids_U,
            rows.columns.states_NS,
            int(self.arrays.num_samples_1[0]),
            self.is_of_ranks,  # samples of other ranks have no order
            len(self.schema.bias),
        )
        own = Slots(*slots)
        if self.schema.weighted:
            own = own._replace(weights_S=slot_weights(self.schema, batch.features, own.fields_S))
        prepared = PreparedBatch(keys, lookup, rows.columns, own, usable_from_U, hashes_U, potential_N)
        if self.by_request and batch.request_N is not None:
            prepared.request_ends_N = run_ends(batch.request_N)
        prepared.crosses = self._find_crosses(prepared, 0)
        return prepared

    def walk(self, prepared: "PreparedBatch", net_NL: Float32Array) -> WideScores:
        """Score and learn the samples in order: the rest of `learn`."""
        keys, rows, slots = prepared.keys, prepared.rows, prepared.slots
        assert keys.numbers is not None
        batch, labels_NL = keys.batch, np.array(keys.batch.labels_NL, np.float32)
        if self._has_values:
            labels_NL[:, self.is_value_L] = np.nan
        logits_NL, errors_NL = np.empty((len(batch), self.num_labels)), np.empty_like(net_NL)
        weights = SampleWeights.of(batch, self.negatives)
        if weights is None:
            loss_NL = np.repeat(batch.weights_N[:, None], self.num_labels, axis=1)
            weights = SampleWeights(loss_NL, batch.weights_N, np.zeros_like(loss_NL))
        wide_batch = WideBatch(
            slots.rows_S,
            slots.fields_S,
            slots.offsets_N1,
            keys.numbers.x_NX,
            net_NL,
            labels_NL,
            weights.loss_NL,
            weights.counted_N,
            weights.offsets_NL,
            rows.values_ND,
            rows.states_NS,
            rows.counts_N,
            self.columns_from,
            NO_SHARES if batch.shares_NL is None else batch.shares_NL,
            self.is_settled_L,
            ALL_COUNTED if batch.is_counted_N is None else batch.is_counted_N,
            self.steps_rows,
            NO_WEIGHTS if slots.weights_S is None else slots.weights_S,
        )
        request_ends_N, scored_NL = prepared.request_ends_N, logits_NL
        if len(request_ends_N):
            scored_NL = np.empty_like(logits_NL)
        lr, crosses, self.num_crosses = FACTORIZATION_RATE * self.table.step_lr, prepared.crosses, 0
        while crosses is not None:
            in_order_pass(
                *(wide_batch, crosses.batch, self.arrays, lr, FACTORIZATION_EPS, logits_NL, errors_NL),
                *(request_ends_N, scored_NL),
            )
            if crosses.lookup is not None:
                self._write_crosses(crosses.lookup, crosses.columns, crosses.batch.weights_Q2L)
                prepared.looked_up.append(crosses.lookup)
            if not self.is_of_ranks:
                self._choose_pairs()
            crosses = self._find_crosses(prepared, crosses.batch.stop)
        if self._has_values:
            logits_NL[:, self.is_value_L] = scored_NL[:, self.is_value_L] = net_NL[:, self.is_value_L]
        for lookup in prepared.looked_up:
            assert self.crosses_of_all is not None
            self.num_crosses += len(lookup.unique.ids_U)
            self.crosses_of_all.touch(lookup)
        self.arrays.number_statistics_3D[...] = keys.numbers.after_3D
        self._write_rows(prepared.lookup, rows.values_ND, rows.states_NS, prepared)
        logits = logits_NL.astype(np.float32)
        return WideScores(logits, errors_NL, scored_NL.astype(np.float32) if len(request_ends_N) else logits)

    def _find_crosses(self, prepared: "PreparedBatch", start: int) -> "RangeCrosses | None":
        """Find the crosses of the samples from `start` on, and look up their rows; None where no sample is left.

        A range ends where one look-up of crosses reaches no further, or at the next choice of pairs.
        """
        arrays, slots = self.arrays, prepared.slots
        end = self._next_end(start, len(slots.offsets_N1) - 1, is_first=not prepared.looked_up)
        if end is None:
            return None
        if end > start and len(prepared.request_ends_N) and not self.is_of_ranks:
            end = int(prepared.request_ends_N[end - 1])
        find = partial(
            crosses_of,
            *(slots.rows_S, slots.crossed_from_NF, slots.num_crossed_NF),
            *(arrays.pair_fields_P2, arrays.pair_is_live_P, prepared.usable_from_U, prepared.hashes_U, start),
        )
        ids_C, pairs_C, offsets_R1, stop = find(end, MAX_CROSSES)
        before = whole_requests(prepared.request_ends_N, stop)
        if start < before < stop:
            ids_C, pairs_C, offsets_R1, stop = find(before, MAX_CROSSES)
        if not len(ids_C) and not (self.is_of_ranks and self.crosses is not None):
            weights_Q2L = np.zeros((0, 2 * self.num_labels), np.float32)
            return RangeCrosses(CrossBatch(start, stop, ids_C, pairs_C, offsets_R1, prepared.potential_N, weights_Q2L))
        event_ms_C = repeated(prepared.keys.batch.event_ms_N, offsets_R1, start)
        lookup, columns, weights_Q2L = self._look_up_crosses(ids_C, event_ms_C)
        rows_C = lookup.unique.inverse_K
        weights_C = NO_WEIGHTS
        if slots.weights_S is not None:
            weights_C = cross_weights(
                *(slots.weights_S, slots.rows_S, slots.crossed_from_NF, slots.num_crossed_NF),
                *(arrays.pair_fields_P2, arrays.pair_is_live_P, prepared.usable_from_U, start, len(ids_C)),
            )
        crosses = CrossBatch(start, stop, rows_C, pairs_C, offsets_R1, prepared.potential_N, weights_Q2L, weights_C)
        return RangeCrosses(crosses, lookup, columns)

    # what differs where many ranks learn together

    def _start_reading(self, lookup: Any) -> Callable[[], HostRows]:
        """Start to read the rows; the returned call, which another thread may make, gives copies of them."""
        unique, rows = lookup.unique, self.table.rows
        if self.is_on_host:
            return lambda: HostRows(unique.features_U, unique.ids_U, unique.inverse_K, rows.read_rows(lookup))
        keys = unique.features_U, unique.ids_U, unique.inverse_K
        arrive = rows.ops.download_async(*keys, *rows.read_rows(lookup)[:3])

        def wait() -> HostRows:
            features_U, ids_U, inverse_K, values_UD, states_US, counts_U = arrive()
            return HostRows(features_U, ids_U, inverse_K, RowColumns(values_UD, states_US, counts_U, None, None))

        return wait

    def _write_rows(
        self, lookup: Any, values_UD: Float32Array, states_US: Float32Array, prepared: "PreparedBatch"
    ) -> None:
        """Write the rows of the whole batch back."""
        rows = self.table.rows
        rows.write_rows(lookup, *((values_UD, states_US) if self.is_on_host else rows.ops.put(values_UD, states_US)))

    def _next_end(self, start: int, num_samples: int, *, is_first: bool) -> int | None:
        """Return until where samples from `start` on are learned at once, None at the end.

        `is_first`: no crosses are looked up yet.
        """
        if start >= num_samples:
            return None
        arrays = self.arrays
        if int(arrays.pair_is_live_P.sum()) <= self.part.max_pairs:
            return num_samples  # pairs are not chosen while few live
        return min(num_samples, start + max(1, CHOICE_SAMPLES - int(arrays.slot_totals_4[3])))

    def _choose_pairs(self) -> None:
        """Where more pairs live than may stay: once in a while drop those that gained least, at most half of them."""
        arrays, live_P = self.arrays, self.arrays.live_pairs
        if len(live_P) <= self.part.max_pairs or arrays.slot_totals_4[3] < CHOICE_SAMPLES:
            return
        arrays.slot_totals_4[3] = 0
        keep = max(self.part.max_pairs, len(live_P) // 2)
        order = np.argsort(-arrays.pair_gains_P[live_P], kind="stable")
        arrays.pair_is_live_P[live_P[order[keep:]]] = 0

    def _look_up_crosses(
        self, ids_C: npt.NDArray[np.int64], event_ms_C: npt.NDArray[np.int64]
    ) -> tuple[Any, RowColumns, Float32Array]:
        """Look up rows of crosses; return their columns, and weights and informations to step.

        Values are weight and information of label 0, then of label 1, ...
        """
        assert self.crosses is not None
        if len(self._features_C) < len(ids_C):
            self._features_C = np.full(2 * len(ids_C), CROSSES, np.uint16)
        # these are keys of the right types: `lookup` would ask them
        lookup = self.crosses.lookup_unique(self._ops.unique(self._features_C[: len(ids_C)], ids_C, event_ms_C))
        columns = self.crosses.read_rows(lookup)
        columns.values_ND[columns.counts_N == 0] = 0.0  # a first value of scale zero may be -0.0: servers score +0.0
        return lookup, columns, columns.values_ND

    def _write_crosses(self, lookup: Any, columns: RowColumns, weights_Q2L: Float32Array) -> None:
        assert self.crosses is not None
        self.crosses.write_rows(lookup, weights_Q2L, columns.states_NS)


def run_ends(ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return where the run of equal ids of each sample ends; a missing one is a run of its own."""
    is_last_N = np.append(ids_N[1:] != ids_N[:-1], True) | (ids_N == MISSING_ID)
    ends = np.flatnonzero(is_last_N) + 1
    return np.repeat(ends, np.diff(ends, prepend=0))


def whole_requests(ends_N: npt.NDArray[np.int64], stop: int) -> int:
    """Return how many of the first `stop` samples are of requests that end among them; all if none matters."""
    while 0 < stop < len(ends_N) and ends_N[stop - 1] != stop:
        stop -= 1
    return stop


def _sums_row_squares(table: AnyTable) -> bool:
    """Return True if the first state of every row that the net sees is the sum of its squared gradients."""
    return all(OPTIMIZERS[one.optimizer.name].sums_row_squares for one in table.model_tables.values())


@dataclass
class RangeCrosses:
    """The crosses of some samples of a batch, whose rows are looked up."""

    batch: CrossBatch
    lookup: Any = None  # None: they have no crosses
    columns: Any = None  # of the rows, before they learn


@dataclass
class PreparedBatch:
    """What a batch's walk needs besides the net's logits."""

    keys: BatchKeys
    lookup: Any
    rows: RowColumns  # of the unique keys; the walk steps values and states
    slots: Slots
    usable_from_U: npt.NDArray[np.int64]  # the first sample of the batch that finds the row used before
    hashes_U: npt.NDArray[np.uint64]
    potential_N: npt.NDArray[np.int64]  # crosses if all pairs lived
    request_ends_N: npt.NDArray[np.int64] = field(
        default_factory=lambda: NO_ENDS
    )  # where the request of each sample ends, if that matters
    crosses: RangeCrosses | None = None  # of the first samples
    looked_up: list[Any] = field(default_factory=list)  # the look-ups of crosses that the walk has come through
