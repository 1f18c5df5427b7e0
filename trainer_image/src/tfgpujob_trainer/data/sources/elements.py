"""Reads a tf.data.Dataset from its beginning to its end, or to where its reader leaves it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any


def elements(dataset: Any) -> Iterator[Any]:
    """The dataset's elements in NumPy; after the last one the reader does not wait for the pipeline to end.

    tf.data ends a pipeline by cancelling the thread that tunes it, which may overlook that and then sleeps until it
    would have tuned again: for about as long as it has run, up to a minute. (`Model::OptimizeLoop` is woken before its
    CancellationManager says that it is cancelled.) So another thread releases it.
    """
    held = [dataset.as_numpy_iterator()]
    try:
        yield from held[0]
    finally:
        with suppress(RuntimeError):  # no room for one more thread, or Python ends: then who has read waits after all
            threading.Thread(target=held.clear, name="end-of-pipeline", daemon=True).start()
