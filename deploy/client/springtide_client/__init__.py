"""Follow a Springtide model from an inference process: `from springtide_client import HotModel`."""

from typing import TYPE_CHECKING, Any

from springtide_client.errors import (
    EncodeError,
    LogError,
    NoModelError,
    SpringtideError,
    StaleModel,
    StaleModelError,
)

if TYPE_CHECKING:
    from springtide_client.hot_model import HotModel

__all__ = ["EncodeError", "HotModel", "LogError", "NoModelError", "SpringtideError", "StaleModel", "StaleModelError"]


def __getattr__(name: str) -> Any:
    # imported when it is first asked for: what only reads a log needs not all of it
    if name == "HotModel":
        from springtide_client.hot_model import HotModel

        return HotModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
