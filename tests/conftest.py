"""What holds for all tests."""

import hypothesis

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")
