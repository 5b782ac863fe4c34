"""Tables of embeddings without a fixed vocabulary; see README.md in this folder."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embeddings.torch_api.dynamic_embedding import DynamicEmbedding

__all__ = ["DynamicEmbedding"]


def __getattr__(name: str) -> object:
    # late, so that importing the package loads neither torch nor numba
    if name == "DynamicEmbedding":
        from embeddings.torch_api.dynamic_embedding import DynamicEmbedding

        return DynamicEmbedding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
