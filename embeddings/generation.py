"""What the parent remembers of the databases on disk."""

from dataclasses import dataclass, field

from embeddings.spill_ages import Ages
from embeddings.spill_filter import KeyFilter


@dataclass(eq=False)
class Database:
    """One folder. `readers` holds it until no find needs it any more."""

    number: int
    keys: KeyFilter = field(default_factory=KeyFilter)
    ages: Ages = field(default_factory=Ages)
    num_marks: int = 0
    exists: bool = False  # it has taken a write, and must be there
    readers: int = 0


@dataclass(eq=False)
class Generation:
    """Databases, the oldest first: one, or two while the rows that are alive move to the newer."""

    number: int
    databases: list[Database] = field(default_factory=list)
    num_rows: int = 0
    gone: bool = False
    movable: bool = True

    def num_below(self, horizons: dict[int, int]) -> int:
        return sum(database.ages.num_below(horizons) for database in self.databases)

    def num_written(self) -> int:
        return sum(database.ages.num_rows for database in self.databases)
