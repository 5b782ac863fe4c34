"""serve.neighbors: exact top-10 of a million rows x 64, of a base alone and under four layers of changes."""

# N rows, D dimension
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from springtide.app.serving.lookup.neighbors import find_neighbors
from springtide.app.serving.model.recent_records import LiveIdDictionary, LiveItems
from springtide.app.serving.model.served_view import ServedView
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from springtide_client.rows.row_block import RowBlock
from tests.bench.harness.report import Case, alternate, arguments, fail, report, timed
from tests.bench.workloads.row_log import DIM, FEATURE, values_of, write_log
from tests.support.layers import sorted_layer

K, LAYERS = 10, (100, 1_000, 10_000, 50_000)


def changes(number: int, num_rows: int, num_changed: int, seed: int) -> RowBlock:
    """Return a layer of rows learned since the base."""
    random = np.random.default_rng(seed)
    ids = random.permutation(num_rows)[:num_changed]
    ones = np.ones(len(ids), np.int64)
    values = random.uniform(-0.3, 0.3, (len(ids), DIM)).astype(np.float32)
    return sorted_layer(np.full(len(ids), number, np.uint16), ids, values, ones, ones * 2_000)


def by_torch(rows_ND: torch.Tensor, row_id: int, metric: str) -> list[int]:
    """Return the nearest rows of a matrix in memory, by row number."""
    query_D = rows_ND[row_id]
    near_N = rows_ND @ query_D
    if metric == "cosine":
        near_N /= torch.linalg.vector_norm(rows_ND, dim=1) * torch.linalg.vector_norm(query_D)
    near_N[row_id] = -torch.inf
    return torch.topk(near_N, K).indices.tolist()


def check(view: ServedView, rows_ND: npt.NDArray[np.float32], number: int) -> None:
    """Check the neighbors against float64; rows equally near to seven digits may be exchanged."""
    exact_ND = rows_ND.astype(np.float64)
    for row_id in (0, len(rows_ND) // 2):
        found = find_neighbors(view, number, row_id, k=K, metric="dot").ranked
        near_N = exact_ND @ exact_ND[row_id]
        near_N[row_id] = -np.inf
        scores = [] if found is None else near_N[found.ids_M]
        if not np.allclose(scores, np.sort(near_N)[::-1][:K], rtol=1e-6):
            fail(f"wrong neighbors of {row_id}")


def main() -> None:
    options = arguments(__doc__)
    num_rows, repeats = (20_000, 2) if options.quick else (1_000_000, 7)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        log = LogDirectory(write_log(Path(folder), num_rows))
        path = log.newest_base()
        assert path is not None
        base = View.open(path)
        number = base.schema.number(FEATURE)
        layers = tuple(changes(number, num_rows, min(n, num_rows // 2), n) for n in LAYERS)
        known = LiveIdDictionary(), LiveItems()
        tables = {name: replace(table, layers=layers) for name, table in base.tables.items()}
        views = {"base": ServedView(base, *known), "layers": ServedView(replace(base, tables=tables), *known)}
        rows_ND = values_of(np.arange(num_rows))
        check(views["base"], rows_ND, number)
        matrix, row_ids = torch.from_numpy(rows_ND), count()
        contenders: dict[str, Callable[[], float]] = {}
        for metric in ("dot", "cosine"):
            for name, view in views.items():
                ask = partial(find_neighbors, view, number, k=K, metric=metric)
                contenders[f"{metric}, {name}"] = partial(lambda ask: timed(lambda: ask(next(row_ids)), 1), ask)
            ask = partial(by_torch, matrix, metric=metric)
            contenders[f"{metric}, torch"] = partial(lambda ask: timed(lambda: ask(row_id=next(row_ids)), 1), ask)
        rates = alternate(contenders, repeats=repeats)
    cases = [
        Case(f"{metric}, {name}", "searches/s", rates[f"{metric}, {name}"], {"torch": rates[f"{metric}, torch"]})
        for metric in ("dot", "cosine")
        for name in views
    ]
    report("serve.neighbors", cases, options, packages=("numpy", "numba", "torch"))
