"""What every test runs under: laws are checked without a stop-watch, and in CI with the same examples every time."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "springtide",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.load_profile("springtide")
