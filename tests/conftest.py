"""One thread a process, no network, and hypothesis without deadlines (machines differ in speed)."""

import os

from hypothesis import HealthCheck, settings

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile(
    "evenhand",
    deadline=None,
    # In CI a run is a function of the code alone; elsewhere it goes on looking.
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("evenhand")
