"""`python -m tests.torture --kills 200 --seed 1`: what `make torture` runs."""

import argparse
import tempfile
import time
from pathlib import Path

from tests.support.process_pool import ProcessPool
from tests.torture.torture import Torture

MEMORY = Path("/dev/shm")


def main() -> None:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="seed of records and faults; default: the time")
    parser.add_argument("--keep", type=Path, help="folder in which all files are kept")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"torture: seed {seed}, {options.kills} kills", flush=True)
    began = time.monotonic()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="torture-", dir=MEMORY if MEMORY.is_dir() else None))
    folder.mkdir(exist_ok=True)
    process_pool = ProcessPool()
    torture = Torture(folder, seed, process_pool, report=lambda line: print(line, flush=True))
    try:
        torture.run(options.kills)
    finally:
        torture.close()
        process_pool.close()
    print(f"torture: {time.monotonic() - began:.0f} s, no difference", flush=True)


if __name__ == "__main__":
    main()
