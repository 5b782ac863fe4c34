"""table.train: rows out, gradients in, the optimizer's step; duplicates summed. Dim 64, full table of 1 M rows.

FBGEMM and torch have no hash: they get row numbers. Ours is EmbeddingTable's lookup, gather and update;
"backward alone" is update against FBGEMM's backward, which groups the ids itself.
"""

# C rows of the table, K keys of a call, D dimension
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from springtide.embeddings.rows import Float32Array
from tests.bench.harness.machine_limits import ThreadSlices, copy_rate
from tests.bench.harness.peer_process import Peers
from tests.bench.harness.processes import save_array
from tests.bench.harness.report import Case, alternate, arguments, fail, report, timed
from tests.bench.table.full_table import FullTable, fill_table
from tests.bench.workloads.keys import Int64Array, positions

DIM, LR, EPS = 64, 0.05, 1e-8
# rows moved between memory and processor: of each key its output and its gradient, of each unique key the row that is
# read for the output, then row and state, read and written
ROWS_OF_A_KEY = 2
ROWS_OF_A_UNIQUE_KEY = {"sgd": 3, "rowwise-adagrad": 3, "adagrad": 5, "adam": 7}


@dataclass(frozen=True)
class Setting:
    """A peer, the keys per call, and the required ratios."""

    optimizer: str
    peer: str
    num_keys: int
    threads: int
    distribution: str
    needed: float
    needed_backward: float | None = None


BAG, EMBEDDING = "torch EmbeddingBag(sparse)", "torch Embedding(sparse)"
# grouped by peer and number of threads, then by optimizer
SETTINGS = (
    Setting("rowwise-adagrad", "FBGEMM", 524_288, 1, "uniform", 1.5, 1.0),
    Setting("rowwise-adagrad", "FBGEMM", 524_288, 1, "zipf", 1.5, 1.0),
    Setting("rowwise-adagrad", "FBGEMM", 524_288, 2, "uniform", 1.5, 1.0),
    Setting("rowwise-adagrad", "FBGEMM", 524_288, 2, "zipf", 1.5, 1.0),
    Setting("sgd", "FBGEMM", 524_288, 2, "uniform", 1.5, 1.0),
    Setting("adam", BAG, 212_992, 2, "uniform", 10.0),
    Setting("adam", BAG, 212_992, 2, "zipf", 10.0),
    Setting("adam", EMBEDDING, 65_536, 2, "uniform", 3.0),
    Setting("adam", "TFRA", 212_992, 2, "uniform", 1.0),
    Setting("adagrad", BAG, 212_992, 2, "uniform", 10.0),
    Setting("adagrad", BAG, 212_992, 2, "zipf", 10.0),
    Setting("adagrad", EMBEDDING, 65_536, 2, "uniform", 3.0),
    Setting("adagrad", "TFRA", 212_992, 2, "uniform", 1.0),
)
VENV_OF = {"FBGEMM": "fbgemm", "TFRA": "tfra"}


class Ours:
    """The table's three calls on one batch."""

    def __init__(self, full: FullTable, ids_K: Int64Array, grads_KD: Float32Array) -> None:
        self.table, self.grads_KD = full.table, grads_KD
        self.keys = np.zeros(len(ids_K), np.uint16), ids_K, np.zeros(len(ids_K), np.int64)

    def train(self) -> None:
        lookup = self.table.lookup(*self.keys)
        self.table.gather(lookup)
        self.table.update(lookup, self.grads_KD)

    def backward(self) -> float:
        """Return the seconds of the update alone, without the lookup before it."""
        lookup = self.table.lookup(*self.keys)
        return timed(partial(self.table.update, lookup, self.grads_KD), len(self.grads_KD))

    def rows(self) -> Float32Array:
        return self.table.find(*self.keys[:2])[0]


class Torch:
    """A sparse torch module with its optimizer; it gets row numbers."""

    def __init__(self, kind: str, optimizer: str, values_CD: Float32Array) -> None:
        weight = torch.from_numpy(values_CD.copy())
        module = torch.nn.Embedding if kind == "torch Embedding(sparse)" else torch.nn.EmbeddingBag
        settings: dict[str, Any] = {"mode": "sum"} if module is torch.nn.EmbeddingBag else {}
        self.module = module.from_pretrained(weight, freeze=False, sparse=True, **settings)
        kinds = {"adam": torch.optim.SparseAdam, "adagrad": torch.optim.Adagrad}
        self.optimizer = kinds[optimizer](self.module.parameters(), lr=LR, eps=EPS)

    def query(self, ids_K: Int64Array, at_K: Int64Array, grads_KD: Float32Array) -> None:
        """Set the keys of the next calls: ids, row numbers, and the gradients."""
        self.at_K, self.grads_KD = torch.from_numpy(at_K), torch.from_numpy(grads_KD)
        # one id per bag
        self.more = (torch.arange(len(at_K)),) if isinstance(self.module, torch.nn.EmbeddingBag) else ()

    def contender(self, part: str, num_keys: int) -> Callable[[], float]:
        """Return the function for `alternate` of a part of the step."""
        assert part == "train"
        return partial(timed, self.train, num_keys)

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.module(self.at_K, *self.more).backward(self.grads_KD)
        self.optimizer.step()

    def rows(self) -> Float32Array:
        return self.module.weight.detach()[self.at_K].numpy()


class InstalledPeer:
    """A peer in its own interpreter, with the methods of `Torch`."""

    def __init__(self, peers: Peers, setting: Setting, full: FullTable, folder: Path) -> None:
        self.peers, self.name, self.folder = peers, setting.peer, folder
        rows = {"keys": save_array(folder, "keys", full.ids_C), "rows": save_array(folder, "rows", full.values_CD)}
        peers.call_all("prepare_rows", **rows, optimizer=setting.optimizer, lr=LR, eps=EPS)

    def query(self, ids_K: Int64Array, at_K: Int64Array, grads_KD: Float32Array) -> None:
        query = {"keys": save_array(self.folder, "query", ids_K), "slots": save_array(self.folder, "slots", at_K)}
        self.peers.call_all("query_rows", **query, grads=save_array(self.folder, "grads", grads_KD))

    def contender(self, part: str, num_keys: int) -> Callable[[], float]:
        return self.peers.contenders(num_keys, "run_rows", part=part)[self.name]

    def rows(self) -> Float32Array:
        self.peers.call_all("answer_rows", peer=self.name, path=str(self.folder / "answer.npy"))
        rows: Float32Array = np.load(self.folder / "answer.npy")
        return rows


def make_peer(setting: Setting, full: FullTable, peers: Peers, folder: Path) -> "Torch | InstalledPeer | None":
    """Return the peer, or None if it is not installed."""
    if setting.peer in VENV_OF:
        return InstalledPeer(peers, setting, full, folder) if setting.peer in peers.installed else None
    torch.set_num_threads(setting.threads)
    return Torch(setting.peer, setting.optimizer, full.values_CD)


def measure(setting: Setting, full: FullTable, peers: Peers, folder: Path, repeats: int) -> list[Case]:
    """Compare a whole step, and the backward pass where the peer has it separately."""
    full.reset()
    num_keys = setting.num_keys
    rival = make_peer(setting, full, peers, folder)
    at_K = positions(setting.distribution, num_keys, len(full.ids_C), seed=1)
    # multiples of 1/8: their sums are exact in any order, and large beside Adam's epsilon
    grads_KD = np.random.default_rng(2).integers(-16, 17, (num_keys, DIM)).astype(np.float32) / 8
    ours = Ours(full, full.ids_C[at_K], grads_KD)
    parts = {"train": {"ours": partial(timed, ours.train, num_keys)}}
    if setting.needed_backward is not None:
        parts["backward"] = {"ours": ours.backward}
    if rival is not None:
        rival.query(full.ids_C[at_K], at_K, grads_KD)
        for part, contenders in parts.items():
            contenders[setting.peer] = rival.contender(part, num_keys)
        # one step of each, from the same rows
        parts["train"][setting.peer]()
        ours.train()
        mine, theirs = ours.rows(), rival.rows()
        if not np.allclose(mine, theirs, rtol=1e-4, atol=1e-5):
            fail(f"{setting.peer}: rows differ by {np.abs(mine - theirs).max()} after a step of {setting.optimizer}")
    cases = []
    for part, contenders in parts.items():
        rates = alternate(contenders, repeats=repeats)
        mine_rates = rates.pop("ours")
        size = f"{num_keys:,} keys, {setting.distribution}, {setting.threads} thread{'s' * (setting.threads > 1)}"
        what = f"{setting.optimizer}, {size}, {part}, against {setting.peer}"
        needed = setting.needed if part == "train" else setting.needed_backward
        limit = None
        if part == "train":
            unique_share = len(np.unique(at_K)) / num_keys
            rows_moved = ROWS_OF_A_KEY + unique_share * ROWS_OF_A_UNIQUE_KEY[setting.optimizer]
            limit = copy_rate(ThreadSlices(setting.threads)) / (rows_moved * 4 * DIM)
        cases.append(Case(what, "rows/s", mine_rates, rates, needed=needed, limit=limit))
    return cases


def main() -> None:
    options = arguments(__doc__)
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default, set explicitly to avoid a warning
    num_rows, repeats = (100_000, 2) if options.quick else (1_000_000, 5)
    cases: list[Case] = []
    versions: dict[str, str] = {}
    full: FullTable | None = None
    with tempfile.TemporaryDirectory() as folder:
        for (optimizer, threads), of_table in groupby(SETTINGS, lambda setting: (setting.optimizer, setting.threads)):
            if full is not None:
                full.table.close()
            settings = {"name": optimizer, "lr": LR, "eps": EPS}
            full = fill_table(num_rows, dim=DIM, optimizer=settings, threads=threads)
            for peer, of_peer in groupby(of_table, lambda setting: setting.peer):
                venv_of = {name: venv for name, venv in VENV_OF.items() if name == peer}
                with Peers(venv_of, venvs=options.peers, threads=threads) as peers:
                    versions |= peers.versions
                    for setting in of_peer:
                        cases += measure(setting, full, peers, Path(folder), repeats)
    report("table.train", cases, options, packages=("numpy", "numba", "torch"), peers=versions)
