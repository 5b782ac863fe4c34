"""pandas and polars, for table.find: where in a column of keys is each key of a call?"""

# C keys of the table, K keys of a call
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas
import polars
from serving import load, serve, timed

THREADS = int(os.environ["PEER_THREADS"])  # polars takes its number from POLARS_MAX_THREADS
pool = ThreadPoolExecutor(THREADS)
state = {}


def versions():
    return {"pandas": pandas.__version__, "polars": polars.__version__}


def prepare_keys(keys):
    """pandas makes its hash table once, with the first look-up; polars makes one with every join."""
    ids_C = load(keys)
    state["index"] = pandas.Index(ids_C)
    state["index"].get_indexer(ids_C[:1])
    state["table"] = polars.DataFrame({"id": ids_C, "slot": np.arange(len(ids_C))})


def query_keys(keys):
    state["ids_K"] = load(keys)
    state["frame"] = polars.DataFrame({"id": state["ids_K"]})


def pandas_find():
    """get_indexer drops the GIL: with two threads each takes a slice."""
    parts = np.array_split(state["ids_K"], THREADS)
    return np.concatenate(list(pool.map(state["index"].get_indexer, parts)))


def polars_find():
    return state["frame"].join(state["table"], on="id", how="left", maintain_order="left")["slot"]


def run_keys(peer):
    return timed(pandas_find if peer == "pandas" else polars_find)


def answer_keys(peer, path):
    """Positions among the table's keys, -1 where there is none."""
    np.save(path, pandas_find() if peer == "pandas" else polars_find().fill_null(-1).to_numpy())


serve(globals())
