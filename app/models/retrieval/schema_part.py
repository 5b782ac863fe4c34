"""Some fields of a schema, as a tower sees them. Their rows have the keys that they have in the whole schema."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from springtide_client.schema import Schema


@dataclass(frozen=True, kw_only=True)
class SchemaPart(Schema):
    """Fields in the order of their schema. It takes a Schema's place where samples are encoded and rows looked up."""

    key_numbers: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check nothing: a part may lack the owner of rows that it shares, or all id features."""

    @staticmethod
    def of(schema: Schema, names: Collection[str]) -> "SchemaPart":
        """Return the fields of these names."""

        def part(fields: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(name for name in fields if name in names)

        return SchemaPart(
            labels=schema.labels,
            categorical=part(schema.categorical),
            multi_value=part(schema.multi_value),
            sequence=part(schema.sequence),
            dense=part(schema.dense),
            max_length=schema.max_length,
            pooling=schema.pooling,
            weighted=part(schema.weighted),
            key_numbers={name: schema.number(name) for name in schema.features if name in names},
        )

    def number(self, feature: str) -> int:
        return self.key_numbers[feature]
