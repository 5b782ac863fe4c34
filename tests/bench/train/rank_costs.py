"""train.rank_costs: what the order of ranks costs an owner that sums gradients, and what a version costs many ranks.

Sums in the order of ranks, after one all-to-all, are the same bits in every run; an owner that adds what arrives first
need not wait for the others. A version: what ranks tell each other, beside the copy that each makes of its own rows.
"""

import pickle
import time
from functools import partial
from statistics import median

from tests.bench.harness.ranks import Ranks, run_in_turn
from tests.bench.harness.report import Case, arguments, report
from tests.bench.train.learner_ranks import batches_of, learner_of

NUM_RANKS = 2, 4
ROWS, DIM, EXCHANGES = 26_000, 16, 100  # gradients of a rank
NUM_VERSIONS, STEPS_A_VERSION, REPEATS = 8, 5, 3
FACTS_BYTES = 4096  # positions, watermarks, letters that a rank tells the others
IN_ORDER, ARRIVAL, VERSION = "in the order of ranks", "as they arrive", "version"


def sums(rank: int, num_ranks: int, how: str, num_exchanges: int) -> dict[str, float]:
    """Send gradients to their owners, who add them up; return exchanges a second."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    part = ROWS // num_ranks
    generator = torch.Generator().manual_seed(rank)
    grads_ND = torch.randn(part * num_ranks, DIM, generator=generator)
    places_RP = torch.stack([torch.randperm(2 * part, generator=generator)[:part] for _ in range(num_ranks)])
    received_ND, totals_UD = torch.empty_like(grads_ND), torch.zeros(2 * part, DIM)
    others = [other for other in range(num_ranks) if other != rank]

    def in_order() -> None:
        dist.all_to_all_single(received_ND, grads_ND)
        totals_UD.zero_().index_add_(0, places_RP.reshape(-1), received_ND)

    def as_they_arrive() -> None:
        sending = [dist.isend(grads_ND[other * part : (other + 1) * part], other) for other in others]
        totals_UD.zero_().index_add_(0, places_RP[rank], grads_ND[rank * part : (rank + 1) * part])
        for _ in others:
            sender = dist.recv(received_ND[:part])  # of any rank
            totals_UD.index_add_(0, places_RP[sender], received_ND[:part])
        for work in sending:
            if work is not None:
                work.wait()
        dist.barrier()  # else the next round's rows may come from a rank that is ahead

    exchange, times = in_order if how == IN_ORDER else as_they_arrive, []
    for number in range(num_exchanges + 10):
        start = time.perf_counter()
        exchange()
        if how == IN_ORDER:
            dist.barrier()  # as above: both pay for it
        if number >= 10:
            times.append(time.perf_counter() - start)
    return {"rate": 1 / median(times)}


def versions(rank: int, num_ranks: int, num_versions: int) -> dict[str, float]:
    """Learn, and now and then tell each other what a version needs; return how often a second that could be done."""
    import torch
    import torch.distributed as dist

    from springtide.embeddings.sharding.exchange import Exchange

    exchange = Exchange(dist.group.WORLD)
    learner = learner_of(num_ranks, exchange, "float32")
    batches, facts = batches_of(rank, num_ranks, (num_versions + 1) * STEPS_A_VERSION), pickle.dumps(bytes(FACTS_BYTES))
    times = []
    for step, batch in enumerate(batches):
        learner.step(batch)
        if (step + 1) % STEPS_A_VERSION:
            continue
        dist.barrier()
        start = time.perf_counter()
        facts_N1 = torch.frombuffer(bytearray(facts), dtype=torch.uint8)[:, None]
        lengths = [numbers[0] for numbers in exchange.all_gather_numbers([len(facts_N1)])]
        exchange.all_gather("objects", facts_N1, lengths)
        for _ in range(3):  # the gate's verdict, letters that are delivered
            exchange.all_gather_numbers([1])
        learner.merge_gathered()
        learner.require_same_net()
        times.append(time.perf_counter() - start)
    learner.table.close()
    return {"rate": 1 / median(times)}


def main() -> None:
    options = arguments(__doc__)
    exchanges, num_versions, repeats = (5, 1, 1) if options.quick else (EXCHANGES, NUM_VERSIONS, REPEATS)
    makers = {how: partial(Ranks, sums, how=how, num_exchanges=exchanges) for how in (IN_ORDER, ARRIVAL)}
    makers[VERSION] = partial(Ranks, versions, num_versions=num_versions)
    contenders = {(what, ranks): make(ranks) for what, make in makers.items() for ranks in NUM_RANKS}
    run_in_turn(contenders.values(), repeats)
    cases = []
    for ranks in NUM_RANKS:
        rates = {what: contenders[what, ranks].all_of("rate") for what in makers}
        cases.append(Case(f"{ranks} ranks, sums {ARRIVAL}", "exchanges/s", rates[ARRIVAL], {IN_ORDER: rates[IN_ORDER]}))
        cases.append(Case(f"{ranks} ranks, what they tell each other for a version", "1/s", rates[VERSION], {}))
    report("train.rank_costs", cases, options, packages=("torch", "numba", "numpy"))
