"""The keys of `[table]`: those of the table itself, and the field whose value scores rows for custom eviction."""

from typing import Annotated

from msgspec import Meta
from springtide_client.schema import Schema

from app.errors import UserError
from embeddings.config import TableConfig


class TableSettings(TableConfig, frozen=True, kw_only=True):
    """The size and the rules of the table, and where rows go that do not fit."""

    score: Annotated[
        str | None,
        Meta(
            description='With `eviction = "custom"`, and only then: the `dense` field whose value in a sample scores '
            "the sample's ids; a missing value counts as 0."
        ),
    ] = None

    def check_score(self, schema: Schema) -> None:
        """Raise UserError if `score` does not fit `eviction`, or is not a dense field of the schema."""
        if self.eviction != "custom":
            if self.score is not None:
                raise UserError(
                    f'[table] score goes with eviction = "custom", not with "{self.eviction}": leave one of them out'
                )
            return
        choices = f"a field of [schema] dense ({', '.join(schema.dense) or 'which is empty'})"
        if self.score is None:
            raise UserError(f'[table] eviction = "custom" needs score = "...", {choices}')
        if self.score not in schema.dense:
            raise UserError(f'[table] score must be {choices}, not "{self.score}"')
