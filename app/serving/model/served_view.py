"""The served model as the routes see it: a view with compiled lookups and the strings of its ids, and its part.

A part says which rows this server holds, and which servers hold the others.
"""

# K keys, D dimension
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from springtide.app.models.config import MODELS_WITHOUT_WIDE
from springtide.app.serving.config import ServeConfig
from springtide.app.serving.http.errors import misdirected
from springtide.app.serving.model.recent_records import LiveIdDictionary, LiveItems
from springtide.kernels.cpu.serving.key_owners import first_foreign, owner_of, split_keys
from springtide.kernels.cpu.serving.layer_search import LayerSearch
from springtide_client.array_types import Float32Array, Int64Array, UInt8Array
from springtide_client.log.base import ID_STRINGS, BaseManifest
from springtide_client.log.shard_files import EVERY_SHARD, ShardChoice
from springtide_client.model.view import View
from springtide_client.parts.part_servers import PartServers
from springtide_client.parts.parted_view import PartedSearch, parted_view
from springtide_client.rows.hash_range import ALL_KEYS, HashRange
from springtide_client.schema import Schema

# how many versions other servers may be behind this one
KEPT_VIEWS = 8


class Part:
    """The settings `range`, `parts` and `router` of one server."""

    def __init__(
        self, hash_range: HashRange = ALL_KEYS, servers: PartServers | None = None, *, is_router: bool = False
    ) -> None:
        """`servers` are those of all parts, if this server knows them; a router answers for keys of all."""
        self.hash_range, self.servers, self.is_router = hash_range, servers, is_router
        self.holds_all = hash_range.is_all and servers is None
        self._answers_all = self.holds_all or is_router

    @staticmethod
    def of(config: ServeConfig, token: str | None, observe: Callable[[str, str, float], None]) -> "Part":
        """`token` is sent to the other servers; `observe(range, outcome, seconds)` hears of their responses."""
        servers = PartServers(config.parts, token=token, observe=observe) if config.parts else None
        return Part(config.hash_range, servers, is_router=config.is_router)

    @property
    def words(self) -> str:
        """The rows that this server holds, in the words of errors."""
        if self.holds_all:
            return "all rows"
        return "no rows" if self.hash_range.is_empty else f"part {self.hash_range}"

    def shard_choice(self, base: BaseManifest) -> ShardChoice:
        """Return which shard records this server reads of the versions over a base.

        A rank writes the items and strings of the ids that it decoded, also of rows that belong to other ranks: a
        model that has strings needs every record. A base from before the first sample does not say whether it will.
        """
        has_strings = ID_STRINGS in base.files or base.model.name in MODELS_WITHOUT_WIDE
        if (has_strings or not base.meta.samples_trained) and not self.hash_range.is_empty:
            return EVERY_SHARD
        return ShardChoice(self.hash_range, counts_all=self.servers is not None)

    @property
    def num_kept_views(self) -> int:
        """How many versions are kept for other servers."""
        return 0 if self.hash_range.is_all or self.hash_range.is_empty else KEPT_VIEWS

    def owner_of(self, feature: int, row_id: int) -> int | None:
        """Return the number, from 0, of the other server that holds a key and answers for it; None: this one does."""
        if not self.is_router or self.servers is None:
            return None
        owner = int(owner_of(feature, row_id, len(self.servers)))
        return None if owner == self.hash_range.number - 1 else owner

    def check_owned(self, feature: int, ids_K: Int64Array) -> None:
        """Raise ApiError 421 with the owner of the first key that this server does not answer for."""
        if self._answers_all:
            return
        count = self.hash_range.count
        index = first_foreign(feature, ids_K, self.hash_range.number - 1, count)
        if index < 0:
            return
        owner = HashRange(int(owner_of(feature, int(ids_K[index]), count)) + 1, count)
        address = None if self.servers is None else self.servers.urls[owner.number - 1]
        message = f"id {int(ids_K[index])} belongs to part {owner}, this server holds part {self.hash_range}"
        hint = "ask a router, or the server of that part" if address is None else f"ask {address}, or a router"
        raise misdirected(message, hint, {"index": index, "range": str(owner), "address": address})

    def check_knows_all(self, what: str) -> None:
        """Raise ApiError 421 where this server neither holds all rows nor knows who does. `what` needs them."""
        if not self.holds_all and self.servers is None:
            message = f"{what} need rows of all parts, this server holds part {self.hash_range}"
            raise misdirected(message, "ask a router, or tell this server the others: [serve] parts")

    def close(self) -> None:
        """Close the connections to the other servers."""
        if self.servers is not None:
            self.servers.close()


WHOLE = Part()


class ServedView:
    """An immutable model: all answers of one view are of one version. Features are their numbers in keys."""

    def __init__(self, own_view: View, id_strings: LiveIdDictionary, items: LiveItems, part: Part = WHOLE) -> None:
        """`own_view` holds the rows of `part`. `items` are those of the log's versions, of a model with two towers."""
        self.own_view, self.part = own_view, part
        self.version = own_view.version
        # with rows of other servers where those are known
        self.client_view = own_view
        if part.servers is not None:
            self.client_view = parted_view(own_view, part.hash_range, part.servers, split_keys)
        # other servers are asked for single rows by a router only
        self._rows_view = self.client_view if part.is_router else own_view
        self._id_strings = id_strings
        self.items = items

    @property
    def schema(self) -> Schema:
        """The features, their order and the labels."""
        return self.own_view.schema

    def dim_of(self, feature: int) -> int:
        """Return the length of a row of a feature."""
        return self.client_view.table_of(feature).dim

    @cached_property
    def feature_numbers(self) -> Mapping[str, int]:
        """The numbers in keys of the id features, by name."""
        return {name: self.schema.number(name) for name in self.schema.features}

    def lookup(self, feature: int, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Return rows [K, D] of one feature, NaN where there is none, and status codes [K]."""
        return self._rows_view.lookup(feature_column(feature), ids_K)

    def lookup_packed(self, feature: int, ids_K: Int64Array) -> UInt8Array:
        """Return the result of `lookup` in one array of bytes: K rows of D float32, then K status codes."""
        search = self._rows_view.search_of(feature)
        assert isinstance(search, (LayerSearch, PartedSearch))
        return search.packed(feature_column(feature), ids_K)

    def has_id_strings(self, feature: int) -> bool:
        """Return True if ids of the feature are hashes of strings."""
        return self._id_strings.has_strings(self.client_view.base, feature)

    def id_texts(self, feature: int, ids_K: Int64Array) -> list[str | None]:
        """Return the string of each id that is the hash of one; None where it is a number."""
        return self._id_strings.find(self.client_view.base, feature, ids_K)


@lru_cache(maxsize=1_024)
def feature_column(feature: int) -> npt.NDArray[np.uint16]:
    """Return one feature number that applies to all ids of a lookup."""
    return np.array([feature], np.uint16)
