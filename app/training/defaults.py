"""The table's settings that a trainer adds where the user gave none. They belong to how the learner takes gradients."""

from msgspec.structs import replace

from embeddings.config import TableConfig

# The learner's loss is a sum over samples, so a row's gradient has the size of its samples' errors, whatever the
# batch. An eps of that size keeps a row's first steps small where errors are small: with 0.2 % clicks and eps = 1e-8
# the first click-less sample moves an id as far as a click would.
ROW_EPS = 0.1
WITH_EPS = ("rowwise-adagrad", "adagrad")


def with_defaults(config: TableConfig) -> TableConfig:
    """The same table, its Adagrad with `eps` unless the user set one."""
    if "eps" in config.optimizer or config.optimizer.get("name", WITH_EPS[0]) not in WITH_EPS:
        return config
    return replace(config, optimizer={**config.optimizer, "eps": ROW_EPS})
