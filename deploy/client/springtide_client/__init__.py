"""Follow a Springtide model from an inference process: `from springtide_client import HotModel`."""

from typing import TYPE_CHECKING, Any

from springtide_client.errors import (
    EncodeError,
    LogError,
    NoModelError,
    PartError,
    SpringtideError,
    StaleModelError,
    VersionsDifferError,
)

if TYPE_CHECKING:
    from springtide_client.hot_model import HotModel

__all__ = [
    "EncodeError",
    "HotModel",
    "LogError",
    "NoModelError",
    "PartError",
    "SpringtideError",
    "StaleModelError",
    "VersionsDifferError",
]


def __getattr__(name: str) -> Any:
    # imported on first use: programs that only read a log do not need its dependencies
    if name == "HotModel":
        from springtide_client.hot_model import HotModel

        return HotModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
