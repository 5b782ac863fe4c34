"""The keys of `[scores]`: by which features scores are split, and with what earlier window the newest is compared."""

from typing import Annotated

from msgspec import Meta

from springtide_client.schema import Schema
from springtide_client.system.settings import SIZE, Settings


class ScoresConfig(Settings, frozen=True, kw_only=True):
    """Measures of the predictions and of the stream beside AUC and logloss."""

    by: Annotated[
        tuple[str, ...],
        Meta(description='Categorical features by whose values scores are split, such as `["country", "device"]`.'),
    ] = ()
    segment_bytes: Annotated[
        int,
        Meta(
            ge=65536,
            extra=SIZE,
            description="Memory for the whole run's scores of all values of `by`: 16 KiB a value and label. The most "
            "frequent values get it, the others are scored together.",
        ),
    ] = 4 << 20
    drift: Annotated[bool, Meta(description="Compare the newest window of samples with an earlier one.")] = True
    reference_samples: Annotated[
        int,
        Meta(
            ge=0,
            description="Drift compares the newest `[train] window_samples` samples with a window from so many to "
            "twice as many samples ago; with the log's first one while it is younger. 0: always with the first one.",
        ),
    ] = 1_000_000

    def check_by(self, schema: Schema) -> None:
        """Raise ValueError if a name of `by` is no categorical feature of the schema."""
        for name in self.by:
            if name not in schema.categorical:
                choices = ", ".join(schema.categorical) or "which is empty"
                raise ValueError(f'by must name features of [schema] categorical ({choices}), not "{name}"')
