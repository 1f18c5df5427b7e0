"""As tests/unit/test_linear_patterns.py: no log makes a regular expression of the trainer slow."""

from __future__ import annotations

from tests import linear

import tfgpujob_trainer


def test_every_pattern_of_the_trainer_is_linear():
    found = linear.patterns(tfgpujob_trainer)
    assert "tfgpujob_trainer.step.jit._UNSUPPORTED" in found
    texts = {pattern: place for place, pattern in found.items()}
    assert {place: said for pattern, place in texts.items() if (said := linear.worst(pattern))} == {}
