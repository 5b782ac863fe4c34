"""A version whose rows lie on several servers: looked up and predicted from as if it were whole."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from springtide_client.errors import VersionsDifferError
from springtide_client.format.records import Tip
from springtide_client.model.view import View
from springtide_client.model.view_table import ViewTable
from springtide_client.parts.part_servers import PartServers
from springtide_client.parts.parted_search import PartedSearch
from springtide_client.rows.hash_range import HashRange, KeySplit, split_by_owner
from springtide_client.rows.search import LayerStack

# how long servers may take to agree on a version, and the pause before they are asked again
AGREE_SECONDS, RETRY_SECONDS = 3.0, 0.02

Result = TypeVar("Result")


def parted_view(view: View, hash_range: HashRange, servers: PartServers, split: KeySplit = split_by_owner) -> View:
    """Return the same version with the rows of all parts; `view` holds those of `hash_range`."""
    tables = {
        name: replace(table, search_factory=_PartedSearches(view, table, hash_range, servers, split))
        for name, table in view.tables.items()
    }
    parted = replace(view, tables=tables)
    parted.prepare()
    return parted


def at_one_version(view_of: Callable[[], View], call: Callable[[View], Result]) -> Result:
    """Call with the newest view, again and again with a newer one while a part does not serve its version.

    VersionsDifferError once that has taken AGREE_SECONDS.
    """
    deadline = time.monotonic() + AGREE_SECONDS
    while True:
        try:
            return call(view_of())
        except VersionsDifferError:
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)


@dataclass(frozen=True)
class _PartedSearches:
    """Makes the search of one table; keeps the view, so that its rows stay in memory for as long as calls use them."""

    view: View
    table: ViewTable
    hash_range: HashRange
    servers: PartServers
    split: KeySplit

    def __call__(self, stack: LayerStack) -> PartedSearch:
        tip: Tip = self.view.tip
        return PartedSearch(
            self.table.search,
            self.hash_range,
            self.servers,
            tip=tip,
            table=stack.table,
            dim=stack.dim,
            state_width=stack.state_width,
            split=self.split,
        )
