"""`python -m tests.torture.ranks --kills 60 --seed 1`: faults of ranks, compared with a dictionary after each."""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from tests.support.process_pool import ProcessPool
from tests.torture.ranks.torture import RankTorture

MEMORY = Path("/dev/shm")


def main() -> None:
    parser = argparse.ArgumentParser(prog="torture.ranks", description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=4, help="at most so many ranks")
    parser.add_argument("--seed", type=int, default=None, help="seed of records and faults; default: the time")
    parser.add_argument("--keep", type=Path, help="folder in which all files are kept")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"torture of ranks: seed {seed}, {options.kills} kills", flush=True)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="torture-", dir=MEMORY if MEMORY.is_dir() else None))
    folder.mkdir(exist_ok=True)
    process_pool = ProcessPool()
    torture = RankTorture(
        folder, seed, process_pool, max_ranks=options.ranks, report=lambda line: print(line, flush=True)
    )
    try:
        torture.run(options.kills)
    finally:
        torture.close()
        process_pool.close()
    if options.keep is None:
        shutil.rmtree(folder)
    print("torture of ranks: no difference", flush=True)


if __name__ == "__main__":
    main()
