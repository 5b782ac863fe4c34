"""The settings of the simulator. No configuration file has them; `springtide simulate` sets some."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SimulatorConfig:
    """The simulated world: its size, how fast it changes, how many impressions per second."""

    seed: int = 0
    rate: float = 3_000.0  # impressions per second
    num_users: int = 100_000
    num_items: int = 20_000
    user_exponent: float = 0.9  # of Zipf's law
    item_exponent: float = 0.7
    replaced_per_minute: float = 0.01  # share of the items that are replaced by new ones
    half_life_seconds: float = 120.0  # of the autocorrelation of preferences
    num_segments: int = 24
    num_categories: int = 40
    num_countries: int = 12
    num_publishers: int = 300
    num_tags: int = 60
    num_placements: int = 6
    num_devices: int = 4

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ValueError(f"rate must be above 0, not {self.rate}")
        if self.num_users < 1 or self.num_items < 1:
            raise ValueError("num_users and num_items must be at least 1")
        if not 0 <= self.replaced_per_minute <= 1:
            raise ValueError(f"replaced_per_minute must be in 0..1, not {self.replaced_per_minute}")
        if not self.half_life_seconds > 0:
            raise ValueError(f"half_life_seconds must be above 0, not {self.half_life_seconds}")
