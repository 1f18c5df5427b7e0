"""Patches Keras and TensorFlow with these modules. Both are pinned, because some of it is private."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest import mock

from tfgpujob_trainer.distribution import (
    assignments,
    mesh,
    operations,
    processes,
    refusals,
    steps,
    tensors,
    variables,
)


@contextmanager
def installed(
    addresses: Sequence[str] = (), index: int = 0, is_told_to_stop: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """keras.distribution works in this block, in this process alone or in those at these addresses. `is_told_to_stop`:
    see processes.py."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, assignments.SEPARATELY))
        if len(addresses) > 1:
            processes.connect(addresses, index)
        processes.stops_when(is_told_to_stop)
        for module in (mesh, tensors, variables, steps, operations, refusals):
            for replacement in module.replacements():
                stack.enter_context(replacement)
        yield
