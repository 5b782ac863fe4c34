"""Springtide: online learning from a click stream, with embeddings in a table that needs no fixed vocabulary.

The sub-packages are the folders of the same names in the repository. Public names are loaded on first use, so that
`import springtide` loads neither torch nor Numba.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from springtide.app.errors import UserError
    from springtide.app.models.interface import DenseModel, ModelSpec, ParameterGroup
    from springtide.embeddings.config import TableConfig
    from springtide.embeddings.errors import EmbeddingsError, SpillError
    from springtide.embeddings.eviction_policy import ScoredRows
    from springtide.embeddings.table import EmbeddingTable
    from springtide.embeddings.torch_api.dynamic_embedding import DynamicEmbedding
    from springtide_client import HotModel
    from springtide_client.errors import SpringtideError

__all__ = [
    "DenseModel",
    "DynamicEmbedding",
    "EmbeddingTable",
    "EmbeddingsError",
    "HotModel",
    "ModelSpec",
    "ParameterGroup",
    "ScoredRows",
    "SpillError",
    "SpringtideError",
    "TableConfig",
    "UserError",
]

_MODULES = {  # public name -> the module that defines it
    "DenseModel": "springtide.app.models.interface",
    "DynamicEmbedding": "springtide.embeddings.torch_api.dynamic_embedding",
    "EmbeddingTable": "springtide.embeddings.table",
    "EmbeddingsError": "springtide.embeddings.errors",
    "HotModel": "springtide_client.hot_model",
    "ModelSpec": "springtide.app.models.interface",
    "ParameterGroup": "springtide.app.models.interface",
    "ScoredRows": "springtide.embeddings.eviction_policy",
    "SpillError": "springtide.embeddings.errors",
    "SpringtideError": "springtide_client.errors",
    "TableConfig": "springtide.embeddings.config",
    "UserError": "springtide.app.errors",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
