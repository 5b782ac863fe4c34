"""`python -m tests.torture.ranks --kills 60 --seed 1`: faults of ranks, compared with a dictionary after each."""

import argparse

from tests.torture.random_faults import main
from tests.torture.ranks.torture import RankTorture

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="torture of ranks", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="at most so many ranks")
    main(
        parser,
        lambda folder, seed, process_pool, options, report: RankTorture(
            folder, seed, process_pool, max_ranks=options.ranks, report=report
        ),
        kills=60,
    )
