"""quality.ranks: one pass over MovieLens 100k on two ranks, rows and gradients in int8 or bfloat16 against float32.

DLRM over a DynamicEmbedding of five id fields; every sample is scored before it is learned, the same batches each time.
"""

from typing import Any

from tests.bench.harness.ranks import Ranks, run_in_turn
from tests.bench.harness.report import DATA, arguments, describe_run, fail, save

FIELDS = "user_id", "item_id", "gender", "occupation", "zip_code"
DIM, BATCH, SEEDS = 16, 64, 3
TOLERANCE = 0.0005


def learn(rank: int, num_ranks: int, precision: str, seed: int, num_samples: int) -> dict[str, float]:
    """Learn a rank's part of each batch; return the AUC and log loss of all samples."""
    import numpy as np
    import pyarrow.parquet as pq
    import torch
    import torch.distributed as dist
    from torch.nn.functional import binary_cross_entropy_with_logits
    from torch.nn.parallel import DistributedDataParallel

    from springtide import DynamicEmbedding
    from springtide.app.models.interactions.dlrm import DLRM
    from springtide.app.models.interface import FieldSpec, ModelSpec
    from springtide.app.scores.auc import click_auc
    from springtide_client.keys import hash_string

    torch.set_num_threads(1)
    table = pq.read_table(DATA / "movielens-100k.parquet", columns=[*FIELDS, "click"]).slice(0, num_samples)
    ids = np.empty((len(table), len(FIELDS)), np.int64)
    for place, name in enumerate(FIELDS):
        column = table[name].combine_chunks().dictionary_encode()
        hashes = np.array(
            [hash_string(f"{name}={value}".encode()) for value in column.dictionary.to_pylist()], np.int64
        )
        ids[:, place] = hashes[column.indices.to_numpy()]
    all_ids, clicks = torch.from_numpy(ids), torch.tensor(table["click"].to_numpy(), dtype=torch.float32)
    rows = DynamicEmbedding(
        DIM,
        "64MiB",
        process_group=dist.group.WORLD,
        forward_precision=precision,
        backward_precision=precision,
        seed=seed,
    )
    torch.manual_seed(seed)
    specs = tuple(FieldSpec(name=name, dim=DIM, owner=name) for name in FIELDS)
    net: Any = DLRM(ModelSpec(categorical=specs, labels=("click",), dim=DIM))
    parallel = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    part = BATCH // num_ranks
    empty = torch.zeros(part, 0, DIM), torch.zeros(part, 0, 1, DIM), torch.zeros(part, 0), torch.zeros(part, 0)
    scores = torch.full((len(all_ids),), torch.nan)
    num_steps = len(all_ids) // BATCH
    for step in range(num_steps):
        here = slice(step * BATCH + rank * part, step * BATCH + (rank + 1) * part)
        pooled, sequence, length, dense = empty
        logits = parallel(rows(all_ids[here]), pooled, sequence, length, dense)[:, 0]
        scores[here] = logits.detach()
        loss = binary_cross_entropy_with_logits(logits, clicks[here])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert rows.shards is not None
    sent = rows.shards.exchange.bytes_sent
    scores = scores.nan_to_num(0.0)
    dist.all_reduce(scores)
    done = num_steps * BATCH
    logloss = float(binary_cross_entropy_with_logits(scores[:done], clicks[:done]))
    found = click_auc(scores[:done].numpy(), clicks[:done].numpy() > 0.5)
    assert found is not None
    bytes_a_row = (sent["rows"] + sent["gradients"]) / max(1, 2 * sent["keys"] // 12)
    return {"auc": found, "logloss": logloss, "bytes_a_row": bytes_a_row}


def main() -> None:
    options = arguments(__doc__)
    if not (DATA / "movielens-100k.parquet").exists():
        fail(f"MovieLens 100k is not in {DATA}: set SPRINGTIDE_BENCH_DATA")
    num_samples = 2_000 if options.quick else 100_000
    seeds = range(1 if options.quick else SEEDS)
    found: dict[str, list[dict[str, float]]] = {}
    for precision in ("float32", "bfloat16", "int8"):
        contenders = [Ranks(learn, 2, precision=precision, seed=seed, num_samples=num_samples) for seed in seeds]
        run_in_turn(contenders, 1)
        found[precision] = [contender.results[0] for contender in contenders]
        for seed, result in zip(seeds, found[precision], strict=True):
            print(
                f"{precision}, seed {seed}: AUC {result['auc']:.4f}, log loss {result['logloss']:.4f}, "
                f"{result['bytes_a_row']:.1f} bytes a row on the wire"
            )
    document = describe_run("quality.ranks", options, packages=("torch", "numba", "numpy"))
    for precision in ("bfloat16", "int8"):
        differences = [a["auc"] - b["auc"] for a, b in zip(found[precision], found["float32"], strict=True)]
        mean = sum(differences) / len(differences)
        print(f"{precision} against float32: AUC {mean:+.5f} (wanted: within {TOLERANCE})")
    save(options, document | {"results": found})
