"""The scope of the job's strategy, in which a script creates its models, and which a call of fit() leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import tensorflow as tf


class JobScope:
    """Entered for the whole script. In it, reading a variable may be a collective, which only one worker would make."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self._entered: Any = None

    def __enter__(self) -> JobScope:
        self._entered = self.strategy.scope()
        self._entered.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._entered is not None:
            entered, self._entered = self._entered, None
            entered.__exit__(None, None, None)

    @contextmanager
    def left(self) -> Iterator[None]:
        """Outside of it, as the trainer's loop is; a scope() that the script has entered in it does not count."""
        if self._entered is None:  # a callback of fit() calls evaluate(), say
            yield
            return
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()


@contextmanager
def sessions_cleared_outside(scope: JobScope) -> Iterator[None]:
    """keras.backend.clear_session() puts a new default graph in the place of the one that knows of the scope."""
    original = tf.compat.v1.reset_default_graph

    def reset() -> None:
        with scope.left():
            original()

    with mock.patch.object(tf.compat.v1, "reset_default_graph", reset):
        yield
