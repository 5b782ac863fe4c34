"""How long the tests with a short and a long form run."""

import os

NUM_EXAMPLES = int(os.environ.get("TORTURE_EXAMPLES", "0"))
IS_LONG = NUM_EXAMPLES > 0  # `make torture` sets it
