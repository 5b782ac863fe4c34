"""TensorFlow Recommenders Addons: a hash table of rows on the CPU (libcuckoo)."""

# C rows of the table, K keys of a call, D dimension
import os

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": ""}

from importlib.metadata import version
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_recommenders_addons.dynamic_embedding as de
from serving import load, serve, timed

THREADS = int(os.environ["PEER_THREADS"])
tf.config.threading.set_intra_op_parallelism_threads(THREADS)
tf.config.threading.set_inter_op_parallelism_threads(THREADS)
OPTIMIZERS = {"adam": tf.keras.optimizers.legacy.Adam, "adagrad": tf.keras.optimizers.legacy.Adagrad}
POLICIES = {"lru": de.TimestampRestrictPolicy, "lfu": de.FrequencyRestrictPolicy}
CHUNK = 1 << 20
state = {"tables": 0}


def versions():
    return {name: version(name) for name in ("tensorflow", "tensorflow-recommenders-addons")}


def new_table(dtype, dim, default, num_rows, **options):
    state["tables"] += 1
    return de.get_variable(
        f"table{state['tables']}",
        key_dtype=tf.int64,
        value_dtype=dtype,
        dim=dim,
        initializer=default,
        init_size=num_rows,
        **options,
    )


def fill(table, ids_C, values_CD):
    for start in range(0, len(ids_C), CHUNK):
        table.upsert(tf.constant(ids_C[start : start + CHUNK]), tf.constant(values_CD[start : start + CHUNK]))


# table.find


def prepare_keys(keys):
    """From key to position; its own hash and nothing beside."""
    ids_C = load(keys)
    state["index"] = new_table(tf.int64, 1, -1, 2 * len(ids_C))
    fill(state["index"], ids_C, np.arange(len(ids_C)).reshape(-1, 1))


def query_keys(keys):
    state["ids_K"] = tf.constant(load(keys))


def run_keys(peer):
    return timed(lambda: state["index"].lookup(state["ids_K"]).numpy())


def answer_keys(peer, path):
    np.save(path, state["index"].lookup(state["ids_K"]).numpy()[:, 0])


# table.fetch, table.train


def prepare_rows(keys, rows, optimizer=None, lr=0.0, eps=1e-7):
    """A table of these rows; the optimizer's slots are tables beside it, made by its first step."""
    ids_C, values_CD = load(keys), load(rows)
    state["rows"] = new_table(tf.float32, values_CD.shape[1], float("nan"), 2 * len(ids_C))
    fill(state["rows"], ids_C, values_CD)
    if optimizer is None:
        return
    settings = {"epsilon": eps} | ({"initial_accumulator_value": 0.0} if optimizer == "adagrad" else {})
    inner = OPTIMIZERS[optimizer](lr, **settings)
    state["optimizer"] = de.DynamicEmbeddingOptimizer(inner)
    state["shadow"] = de.shadow_ops.ShadowVariable(state["rows"], name=f"shadow{state['tables']}")
    state["step"] = tf.function(step)


def query_rows(keys, slots, grads=None):
    state["ids_K"] = tf.constant(load(keys))
    if grads is not None:
        state["grads_KD"] = tf.constant(load(grads))


def step(ids_K, grads_KD):
    """A look-up whose rows get this gradient, and the optimizer's step; ids that repeat are looked up once."""
    with tf.GradientTape() as tape:
        unique_U, inverse_K = tf.unique(ids_K, out_idx=tf.int64)
        rows_UD = de.shadow_ops.embedding_lookup(state["shadow"], unique_U)
        out = tf.reduce_sum(tf.gather(rows_UD, inverse_K) * grads_KD)
    grads = tape.gradient(out, [state["shadow"]])
    state["optimizer"].apply_gradients(zip(grads, [state["shadow"]], strict=True))


def run_rows(peer, part):
    if part == "train":
        return timed(lambda: state["step"](state["ids_K"], state["grads_KD"]))
    return timed(lambda: state["rows"].lookup(state["ids_K"]).numpy())


def answer_rows(peer, path):
    np.save(path, state["rows"].lookup(state["ids_K"]).numpy())


# table.churn


def prepare_churn(capacity, policy, dim):
    """At most `capacity` rows after each restriction; a quarter more before the next, for each exports the table."""
    table = new_table(tf.float32, dim, 0.0, 2 * capacity, restrict_policy=POLICIES[policy])
    state["churn"], state["capacity"] = table, capacity


def run_churn(peer, stream, start, stop, batch_size):
    """Per batch: lookup, first values for keys without a row, the policy's bookkeeping, and at times an eviction."""
    ids = np.array(np.load(stream, mmap_mode="r")[start:stop])
    batches = [tf.constant(ids[at : at + batch_size]) for at in range(0, len(ids), batch_size)]
    table, capacity, found = state["churn"], state["capacity"], 0

    def work():
        nonlocal found
        for batch in batches:
            unique_U, inverse_K, occurrences_U = tf.unique_with_counts(batch, out_idx=tf.int64)
            rows_UD, exists_U = table.lookup(unique_U, return_exists=True)
            found += int(tf.reduce_sum(tf.where(exists_U, occurrences_U, 0)))
            new_N = tf.boolean_mask(unique_U, tf.logical_not(exists_U))
            table.upsert(new_N, tf.random.uniform((len(new_N), rows_UD.shape[1]), -0.01, 0.01))
            table.restrict_policy.apply_update(unique_U)
            tf.gather(rows_UD, inverse_K)
            table.restrict(capacity, trigger=capacity + capacity // 4)

    return timed(work) | {"found": found, "rows": int(table.size())}


# snapshot


def prepare_files(keys, rows, states, folder):
    """Values and their state are two tables, as its optimizers keep them."""
    ids_C, parts = load(keys), (load(rows), load(states))
    state["files"] = Path(folder) / "tfra"
    state["files"].mkdir()
    state["saved"] = [new_table(tf.float32, part.shape[1], 0.0, 2 * len(ids_C)) for part in parts]
    for table, part in zip(state["saved"], parts, strict=True):
        fill(table, ids_C, part)
    state["loaded"] = [new_table(tf.float32, part.shape[1], 0.0, 2 * len(ids_C)) for part in parts]
    state["checked"] = tf.constant(ids_C[:1000]), parts[0][:1000]


def save_rows(peer):
    return timed(save_files)


def save_files():
    for number, table in enumerate(state["saved"]):
        table.tables[0].save_to_file_system(str(state["files"]), file_name=f"part{number}")
    for path in state["files"].iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def load_rows(peer):
    for table in state["loaded"]:
        table.clear()
    told = timed(load_files)
    ids_K, rows_KD = state["checked"]
    if not np.array_equal(state["loaded"][0].lookup(ids_K).numpy(), rows_KD):
        raise ValueError("rows that were loaded are not those that were saved")
    return told


def load_files():
    for number, table in enumerate(state["loaded"]):
        table.tables[0].load_from_file_system(str(state["files"]), file_name=f"part{number}")
    state["loaded"][0].lookup(state["checked"][0]).numpy()


serve(globals())
