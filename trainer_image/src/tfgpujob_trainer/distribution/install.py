"""Patches Keras and TensorFlow with these modules. Both are pinned, because some of it is private."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from tfgpujob_trainer.distribution import mesh, operations, steps, tensors, variables

_WITHOUT_COMBINER = {"DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION": "0"}
"""DTensor's combiner of all-reduces moves the use of a gradient past the reads of variables: Adam's weights would be
updated from the previous step's slots. Read when the first function is compiled."""


@contextmanager
def installed() -> Iterator[None]:
    """keras.distribution works in this block."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, _WITHOUT_COMBINER))
        for module in (mesh, tensors, variables, steps, operations):
            for replacement in module.replacements():
                stack.enter_context(replacement)
        yield
