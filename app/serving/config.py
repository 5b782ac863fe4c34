"""The keys of `[serve]`."""

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from springtide_client.explore import Epsilon, Places, Policy, PolicyName, Temperature
from springtide_client.parts.part_servers import check_url
from springtide_client.rows.hash_range import ALL_KEYS, NO_KEYS, HashRange
from springtide_client.schema import Schema
from springtide_client.system.settings import SIZE, Settings

MAX_WORKERS = 256


class ExploreConfig(Settings, frozen=True, kw_only=True):
    """How POST /v1/rank chooses what is shown first. Predictions never explore."""

    policy: Annotated[
        PolicyName,
        Meta(description='"greedy": by score. "epsilon" and "softmax" draw the first places, with known propensities.'),
    ] = "greedy"
    epsilon: Epsilon = 0.1
    temperature: Temperature = 1.0
    places: Places = 1
    label: Annotated[
        str | None, Meta(description="The label whose probability candidates are ranked by. Default: the first one.")
    ] = None
    policies: Annotated[
        tuple[PolicyName, ...],
        Meta(
            description="Policies whose probability of the first item shown, and expected reward, are in the answer: "
            "what a record must bring so that their value can be estimated."
        ),
    ] = ("greedy",)

    def named(self, name: PolicyName) -> Policy:
        """Return a policy with these settings."""
        return Policy(name=name, epsilon=self.epsilon, temperature=self.temperature, places=self.places)

    def place_of_label(self, schema: Schema) -> int:
        """Return which of the schema's labels is ranked by; ValueError if it is none of them, or no probability."""
        label = schema.labels[0] if self.label is None else self.label
        usable = [name for name in schema.labels if name not in schema.links]
        if label not in usable:
            why = "learned as a value" if label in schema.links else "no label of this model"
            choose = f"set it to one of {', '.join(usable)}" if usable else "this model has no other, use /v1/predict"
            raise ValueError(f"label = {label!r} is {why}: candidates are ranked by a probability, {choose}")
        return schema.labels.index(label)


class ServeConfig(Settings, frozen=True, kw_only=True):
    """Where the server listens, who may call it, and how much one request may use.

    Memory and disk are shared by all workers; limits on requests are per worker.
    """

    host: Annotated[
        str, Meta(description="Address to listen on. Anything but loopback needs `tokens_file` or `insecure`.")
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes any free one.")] = 8000
    workers: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_WORKERS,
            description="Server processes, at best as many as cores. With two or more, SIGHUP restarts them one by one "
            "without a failed request.",
        ),
    ] = 1
    cache_bytes: Annotated[
        int, Meta(ge=1, extra=SIZE, description="Memory for rows changed since the base; more move to files.")
    ] = 2 << 30
    cache_disk_bytes: Annotated[
        int,
        Meta(
            ge=1,
            extra=SIZE,
            description="Size of those files. When it is reached, the served version waits for a newer base.",
        ),
    ] = 20 << 30
    snapshot_bytes: Annotated[int, Meta(ge=1, extra=SIZE, description="Disk for requested model snapshots.")] = 20 << 30
    cache_path: Annotated[
        str | None,
        Meta(description="Folder of those files and snapshots. Default: a temporary folder, removed at the end."),
    ] = None
    tokens_file: Annotated[
        str | None, Meta(description="File of bearer tokens, one per line: `read,predict=SECRET`, `admin=SECRET`.")
    ] = None
    insecure: Annotated[bool, Meta(description="Allow a public address without tokens.")] = False
    range: Annotated[
        str | None,
        Meta(
            description='The part of all rows that this server holds: `"2/4"` is the second of four equal ranges of '
            "the keys' hash. It answers for keys of other parts with 421. Default: all rows."
        ),
    ] = None
    parts: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses of the servers of all parts, in the order of their ranges: "
            '`["http://a:8000", "http://b:8000"]`. With them this server can predict, with rows of all parts; for a '
            "key of another part it answers 421 with the address of its server. Without `range` this server holds no "
            "rows and sends every request on to the others, with the first token that has the scope `read`."
        ),
    ] = ()
    router: Annotated[
        bool, Meta(description="With `range` and `parts`: answer for keys of other parts too, by asking their servers.")
    ] = False
    max_body_bytes: Annotated[int, Meta(ge=1, extra=SIZE, description="Largest request body.")] = 16 << 20
    max_ids: Annotated[int, Meta(ge=1, description="Ids in one embeddings request.")] = 65_536
    max_instances: Annotated[int, Meta(ge=1, description="Instances in one predict request.")] = 8_192
    max_neighbors: Annotated[int, Meta(description="Largest `k` of a neighbors or retrieve request.")] = 1_000
    max_streams: Annotated[int, Meta(ge=1, description="Open log streams, event streams and long polls.")] = 256
    max_in_flight: Annotated[int, Meta(ge=1, description="Requests at once; more are answered with 429.")] = 512
    max_connections: Annotated[int, Meta(ge=1, description="Open connections; more are answered with 429.")] = 4_096
    request_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="Time for a request to arrive completely, and for each part of a response to be taken.",
        ),
    ] = 30.0
    access_log_sample_rate: Annotated[
        float, Meta(ge=0, le=1, description="Share of requests that are logged: 0.01 logs one in a hundred.")
    ] = 0.0
    predict_max_batch_rows: Annotated[
        int,
        Meta(ge=1, description="Instances of several predict requests scored in one model call; 1 scores each alone."),
    ] = 1_024
    predict_batch_timeout_ms: Annotated[
        float,
        Meta(
            ge=0,
            le=1_000,
            description="How long a predict request waits for others to join its batch. Those that are waiting "
            "anyway are always scored together.",
        ),
    ] = 0.0
    explore: Annotated[
        Mapping[str, Any],
        Meta(description="How `/v1/rank` chooses what is shown first.", extra={"table": ExploreConfig}),
    ] = {}
    poll_interval_seconds: Annotated[
        float,
        Meta(gt=0, le=10, description="How often the log is checked where the system reports no file changes."),
    ] = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            hash_range = None if self.range is None else HashRange.parse(self.range)
        except ValueError as error:
            raise ValueError(f"range {error}") from None
        for url in self.parts:
            try:
                check_url(url)
            except ValueError as error:
                raise ValueError(f"parts {error}") from None
        if hash_range is not None and self.parts and len(self.parts) != hash_range.count:
            raise ValueError(f'parts has {len(self.parts)} addresses, range = "{hash_range}" needs {hash_range.count}')
        if self.router and not self.parts:
            raise ValueError("router needs the addresses of all parts: set parts")

    @property
    def exploration(self) -> ExploreConfig:
        """The settings of `explore`."""
        return ExploreConfig.of(self.explore)

    @property
    def hash_range(self) -> HashRange:
        """Whose rows this server holds."""
        if self.range is not None:
            return HashRange.parse(self.range)
        return NO_KEYS if self.parts else ALL_KEYS

    @property
    def is_router(self) -> bool:
        """True if it answers for keys whose rows other servers hold."""
        return self.router or (bool(self.parts) and self.range is None)

    @property
    def is_loopback(self) -> bool:
        """True if only this host can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
