"""Settings of hypothesis: examples are bounded, and in CI they are the same at every run."""

from __future__ import annotations

import gc
import os

from hypothesis import HealthCheck, settings

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile("dev", deadline=None, max_examples=50, suppress_health_check=QUIET)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("dev"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_collection_finish() -> None:
    """Lets collections of garbage, which many tests ask for, pass over what the imported libraries hold."""
    gc.collect()
    gc.freeze()
