"""The settings of the simulator. No configuration file has them; `springtide simulate` sets some."""

from typing import Annotated

from msgspec import Meta

from springtide_client.system.settings import FINITE, Settings


class SimulatorConfig(Settings, frozen=True, kw_only=True):
    """The simulated world: its size, how fast it changes, how many impressions per second."""

    seed: int = 0
    rate: Annotated[float, Meta(gt=0, extra=FINITE)] = 3_000.0  # impressions per second
    num_users: Annotated[int, Meta(ge=1)] = 100_000
    num_items: Annotated[int, Meta(ge=1)] = 20_000
    user_exponent: float = 0.9  # of Zipf's law
    item_exponent: float = 0.7
    replaced_per_minute: Annotated[float, Meta(ge=0, le=1)] = 0.01  # share of the items that are replaced by new ones
    half_life_seconds: Annotated[float, Meta(gt=0)] = 120.0  # of the autocorrelation of preferences
    num_segments: int = 24
    num_categories: int = 40
    num_countries: int = 12
    num_publishers: int = 300
    num_tags: int = 60
    num_placements: int = 6
    num_devices: int = 4
