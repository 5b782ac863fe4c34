"""`python -m tests.torture --kills 200 --seed 1`: what `make torture` runs."""

import argparse

from tests.torture.random_faults import main
from tests.torture.torture import Torture

if __name__ == "__main__":
    main(
        argparse.ArgumentParser(prog="torture", description=__doc__),
        lambda folder, seed, process_pool, _, report: Torture(folder, seed, process_pool, report),
        kills=200,
    )
