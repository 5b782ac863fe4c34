"""Which features of the schema have had a value: a misspelt one never has, and would be learned as always missing."""

from collections.abc import Iterable

import numpy as np

from springtide_client.features import Features
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema


class FeatureValues:
    """Looks at samples until `enough` of them; those after them cost nothing."""

    def __init__(self, schema: Schema, *, enough: int | None = None) -> None:
        """`enough`: None looks at all."""
        self.num_samples = 0  # looked at
        self.enough = enough
        self._has_value = dict.fromkeys((*schema.categorical, *schema.lists, *schema.dense), False)

    @property
    def without(self) -> list[str]:
        """The features that have had no value."""
        return [name for name, has_value in self._has_value.items() if not has_value]

    def add(self, features: Features) -> None:
        """Look at samples, unless there were enough before."""
        if self.enough is not None and self.num_samples >= self.enough:
            return
        self.num_samples += len(features.dense_NF)
        found = [
            *np.any(features.categorical_NC != MISSING_ID, axis=0).tolist(),
            *(len(ragged.ids_M) > 0 for ragged in features.lists),
            *np.any(~np.isnan(features.dense_NF), axis=0).tolist(),
        ]
        for name, has_value in zip(self._has_value, found, strict=True):
            self._has_value[name] |= has_value


def without_values(features_R: Iterable[list[str]]) -> list[str]:
    """Return the features that no rank has seen a value of, from the lists of all ranks."""
    first, *others = features_R
    return [name for name in first if all(name in other for other in others)]
