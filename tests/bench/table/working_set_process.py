"""The process of one contender of table.working_set."""

from tests.bench.peers.serving import serve
from tests.bench.table.working_set_contender import Contender

state = {}


def prepare(**settings):
    state["contender"] = Contender(**settings)


serve(
    {
        "prepare": prepare,
        "run": lambda num_batches: state["contender"].run(num_batches),
        "dense_only": lambda num_batches: state["contender"].dense_only(num_batches),
        "close": lambda: state["contender"].close(),
    }
)
