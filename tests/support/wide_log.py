"""A hand-written log whose versions hold what the plain oracle of the wide part has learned."""

# L labels
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from springtide_client.keys import CROSSES, SHARED_ROW_OFFSET
from springtide_client.rows.initial_values import initial_values
from springtide_client.wide.fields import WideFields
from springtide_client.wide.layout import wide_width
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.slots import cross_ids, row_hashes
from tests.support.logs import HandWrittenLog, Key
from tests.support.toy_model import DIM, TOY_SCHEMA, toy_archive
from tests.support.wide_oracle import WideOracle

L = len(TOY_SCHEMA.labels)
MAX_CROSSED = 8
NUM_USERS, NUM_ITEMS = 12, 6
Instance = dict[str, Any]


class WideLog:
    """A log of the toy schema, and the oracle that learns what it holds."""

    def __init__(self, path: Path, *, crosses_table: bool, seed: int = 1, **options: Any) -> None:
        tables = {"crosses": (2 * L, [CROSSES])} if crosses_table else {}
        self.log = HandWrittenLog(
            path, TOY_SCHEMA, toy_archive(), tables=tables, wide_width=wide_width(L), start=False, **options
        )
        fields = WideFields.of(TOY_SCHEMA)
        self.oracle = WideOracle(
            fields.numbers_F.tolist(), 1, L, DIM, first_vector=self.first_vector, cross_id=real_cross_id
        )
        self.random = np.random.default_rng(seed)
        self.shared_users: set[int] = set()  # not admitted: they share a row
        self._put_dense()
        self.log.start_epoch()

    def first_vector(self, number: int, id_: int) -> np.ndarray:
        key = np.array([number], np.uint16), np.array([id_])
        return initial_values(*key, dim=DIM, seed=self.log.seed, scale=self.log.init_scale)[0]

    def instance(self) -> Instance:
        """Return raw features, some of ids that no sample had."""
        random = self.random
        made: Instance = {"user_id": int(random.integers(NUM_USERS)), "item_id": int(random.integers(NUM_ITEMS))}
        made["genres"] = random.integers(0, 15, random.integers(0, 11)).tolist()
        made["last_items"] = random.integers(0, NUM_ITEMS, random.integers(0, 4)).tolist()
        if random.random() < 0.8:
            made["age"] = float(np.round(random.normal(20, 30), 1))
        return made

    def fields(self, instance: Instance) -> tuple[list[list[Key]], list[list[Key]], list[float]]:
        """Return the oracle's view of an instance: ids of its fields, those that are crossed, signed logs."""
        user = instance["user_id"]
        users = [(SHARED_ROW_OFFSET, 0) if user in self.shared_users else (0, user)]
        genres = [(2, genre) for genre in instance["genres"]]
        items = [(1, instance["item_id"])]
        age = np.array([instance.get("age", np.nan)], np.float32).astype(np.float64)
        logs = np.copysign(np.log1p(np.abs(age)), age).tolist()
        return [users, items, genres], [users, items, genres[:MAX_CROSSED]], logs

    def learn(self, num_samples: int) -> None:
        """Learn random samples, whose net says 0.1 and -0.2."""
        for _ in range(num_samples):
            labels = [float(self.random.random() < 0.4), float("nan") if self.random.random() < 0.3 else 1.0]
            self.oracle.learn(*self.fields(self.instance()), [0.1, -0.2], labels)

    def forget(self, key: Key) -> int:
        """Append a version that forgets a row."""
        self.oracle.rows.pop(key, None)
        return self.log.append(forgotten=[key])

    def publish(self, **version: Any) -> int:
        """Append a version with all that the oracle has learned."""
        rows = {key: (row.v, row.n, 1) for key, row in self.oracle.rows.items()}
        self.log.wide |= {
            key: np.array([*np.ravel([columns(row, label) for label in range(L)]), row.born])
            for key, row in self.oracle.rows.items()
        }
        for id_, pairs in self.oracle.cross_rows.items():
            if self.log.tables:
                rows[CROSSES, id_] = np.ravel(pairs), 1, 1
            else:
                rows[CROSSES, id_] = np.full(DIM, 9), 1, 1
                self.log.wide[CROSSES, id_] = np.array([*np.ravel([[w, h, 7, 7] for w, h in pairs]), 0])
        self._put_dense()
        return self.log.append(rows, dense=self.log.dense, **version)

    def logits(self, instance: Instance, net: list[float]) -> list[float]:
        """Return what the oracle says of an instance."""
        return self.oracle.predict(*self.fields(instance), net)

    def _put_dense(self) -> None:
        self.log.dense |= {f"wide.{name}": array for name, array in parameters_of(self.oracle).named().items()}


def columns(row: Any, label: int) -> list[float]:
    """Return the numbers of a label in an oracle's row."""
    return [getattr(row, name)[label] for name in ("w", "h", "plain", "plain_squares")]


def real_cross_id(number_a: int, id_a: int, born_a: int, number_b: int, id_b: int, born_b: int) -> int:
    """Return the id of a cross as the product computes it."""
    hashes = row_hashes(np.array([number_a, number_b]), np.array([id_a, id_b]), np.array([born_a, born_b]))
    return int(cross_ids(hashes[:1], hashes[1:])[0])


def parameters_of(oracle: WideOracle) -> WideParameters:
    """Return the oracle's state as the arrays of a version."""
    fields = WideFields(tuple(map(str, oracle.numbers)), np.array(oracle.numbers), oracle.B)
    arrays: Mapping[str, Any] = WideParameters.initial(fields, oracle.D, oracle.L).named()
    changed = {
        "slot_totals_4": [oracle.samples, oracle.first_total, oracle.cross_total, oracle.since_choice],
        "pair_is_live_P": [oracle.live[p] for p in oracle.live],
        "number_statistics_3D": np.array([[s.mean, s.variance, s.count] for s in oracle.stats]).reshape(-1, 3).T,
        "seen_statistics_3F": np.array([[s.mean, s.variance, s.count] for s in oracle.seen]).T,
        "base_L": oracle.base,
        "bias_L": oracle.bias,
        "group_weights_LG": oracle.c,
        "gates_LTB": oracle.a,
        "number_weights_LX": oracle.wn.reshape(oracle.L, -1),
        "seen_weights_LF2": oracle.u,
        "plain_bias_L": oracle.pbias,
        "plain_group_weights_L2": oracle.pc,
        "plain_number_weights_LX": oracle.pwn.reshape(oracle.L, -1),
        "mixture_L": oracle.mixture,
    }
    named = {name: np.asarray(value, arrays[name].dtype) for name, value in changed.items()}
    return WideParameters(**{**arrays, **named})
