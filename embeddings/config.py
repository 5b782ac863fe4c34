"""A table's settings: the keys of `[table]`, and for each feature those of `[features.<name>]`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from springtide.embeddings.eviction_policy import EVICTION_POLICIES, EvictionPolicy
from springtide.embeddings.optimizer import RowOptimizer
from springtide.kernels.types import RowLayout
from springtide_client.system.settings import FINITE, INTERNAL, SIZE, Settings, Size

MAX_MIN_COUNT = 255  # what a counter of the admission sketch can hold
MAX_TTL_SECONDS = 1e12

Ttl = Annotated[float, Meta(gt=0, lt=MAX_TTL_SECONDS)]
Quota = Annotated[int, Meta(ge=1, extra=SIZE)]
MinCount = Annotated[int, Meta(ge=1, le=MAX_MIN_COUNT)]
if TYPE_CHECKING:
    EvictionName = str
else:
    EvictionName = Literal[tuple(EVICTION_POLICIES)]


class FeaturePolicy(Settings, frozen=True, kw_only=True):
    """Settings of one feature's rows. None: no limit; for `min_count` the table's."""

    ttl_seconds: Ttl | None = None
    quota_bytes: Quota | None = None
    min_count: MinCount | None = None


class Admission(Settings, frozen=True, kw_only=True):
    """Which ids get a row: those seen at least `min_count` times, according to a counting sketch.

    The sketch's counts are halved regularly, so that rare ids are not admitted in the long run.
    """

    min_count: Annotated[
        MinCount, Meta(description="An id gets a row when it is seen this many times; until then it shares one.")
    ] = 1
    sketch_bytes: Annotated[
        int, Meta(ge=64, extra=SIZE, description="Size of the sketch that counts ids without a row.")
    ] = 16 << 20
    decay_every_samples: Annotated[
        int, Meta(ge=1, description="The sketch's counts are halved after this many samples.")
    ] = 10_000_000


class FeatureTable(Settings, frozen=True, kw_only=True):
    """A table of its own for features whose rows differ from others in width or optimizer."""

    dim: int
    optimizer: Mapping[str, Any] | None = None  # None: as `[table] optimizer`
    features: tuple[int, ...] = ()  # the numbers of the features that it holds
    # rows that no model sees: float32 numbers that begin at zero and are written by their owner, without wide columns
    is_plain: bool = False
    device_bytes: int | None = None  # of a plain table, beside those of all others; None: it has a part of them


class TableConfig(Settings, frozen=True, kw_only=True):
    """The size and the rules of a table."""

    dim: Annotated[int, Meta(ge=1, le=4096, description="Numbers in a row.")] = 16
    device_bytes: Annotated[
        Size,
        Meta(
            description="Memory for rows, index, overflow area and evicted dirty rows: RAM, or GPU memory with "
            '`[train] device = "cuda"`.'
        ),
    ] = 1 << 30
    host_bytes: Annotated[
        Size, Meta(description="A second tier in RAM below a GPU. On the CPU, raise `device_bytes` instead.")
    ] = 0
    disk_bytes: Annotated[
        Size,
        Meta(
            description="Disk for spill and log together; at least half of it is the spill's. Rows that do not fit are "
            "deleted, those seen longest ago first."
        ),
    ] = 100 << 30
    disk_path: Annotated[
        str | None,
        Meta(description="Folder of the spill, emptied at every start. Default: `var/<name>/spill`."),
    ] = None
    eviction: Annotated[
        EvictionName,
        Meta(
            description="Which row is evicted first: "
            + "; ".join(f'"{policy.name}", {policy.description}' for policy in EVICTION_POLICIES.values())
            + "."
        ),
    ] = "lru"
    admission: Annotated[Mapping[str, Any], Meta(description="Which ids get a row.", extra={"table": Admission})] = (
        msgspec.field(default_factory=lambda: {"min_count": 1})
    )
    optimizer: Annotated[
        Mapping[str, Any], Meta(description="Optimizer of the rows.", extra={"table": RowOptimizer})
    ] = msgspec.field(default_factory=lambda: {"name": "rowwise-adagrad", "lr": 0.05})
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        Meta(
            description='Type of the values; optimizer state is float32. "bfloat16" halves their memory and is '
            "rounded stochastically."
        ),
    ] = "float32"
    # products of smaller initial values are slow to learn
    init_scale: Annotated[float, Meta(ge=0, extra=FINITE, description="Scale of a new row's values.")] = 0.05
    num_threads: Annotated[
        int, Meta(ge=1, le=256, description="At least this many threads share one operation of the table.")
    ] = 1
    features: Annotated[Mapping[int, FeaturePolicy], Meta(extra=INTERNAL)] = {}  # by feature number
    # all tables by name, the main one ("") first; empty where there is one
    tables: Annotated[Mapping[str, FeatureTable], Meta(extra=INTERNAL)] = {}
    # memory of the rows that remember ids, beside `device_bytes`
    memory_bytes: Annotated[int, Meta(ge=0, extra=INTERNAL)] = 0
    # float32 numbers of a row's own that no optimizer touches, at the end of its state; zero in a new row
    wide_width: Annotated[int, Meta(ge=0, extra=INTERNAL)] = 0

    @property
    def eviction_policy(self) -> EvictionPolicy:
        return EVICTION_POLICIES[self.eviction]

    @property
    def widest_dim(self) -> int:
        """The width of the rows that a model sees: of the widest table; rows of others end in zeros."""
        return max([self.dim, *(table.dim for table in self.tables.values() if not table.is_plain)])

    @property
    def dims(self) -> dict[int, int]:
        """The width of rows by feature number; empty where all have `dim`."""
        return {number: table.dim for table in self.tables.values() for number in table.features}

    @property
    def layout(self) -> RowLayout:
        """The columns of the table's rows."""
        state_width = RowOptimizer.of(self.optimizer).state_width(self.dim) + self.wide_width
        return RowLayout(self.dim, state_width, self.dtype, self.wide_width)


class TableLimits(Settings, frozen=True, kw_only=True):
    """Settings to change while a table is in use. None and absent features: unchanged; a feature's None: no limit."""

    device_bytes: Size | None = None
    disk_bytes: Size | None = None
    lr: Annotated[float, Meta(ge=0, extra=FINITE)] | None = None
    ttl_seconds: Mapping[int, Ttl | None] = {}
    quota_bytes: Mapping[int, Quota | None] = {}
    min_count: Mapping[int, MinCount | None] = {}
