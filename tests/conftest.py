"""What holds for all tests."""

import hypothesis

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")
