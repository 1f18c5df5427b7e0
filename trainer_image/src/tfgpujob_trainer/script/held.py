"""The model that the trainer has taken over for the current fit() or evaluate() of a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover, as_compiled
from tfgpujob_trainer.model.taken_over import given_back
from tfgpujob_trainer.train.built_model import Steps


class Held:
    """That model, with the steps of a fit(), whose callbacks may evaluate and save it."""

    def __init__(self) -> None:
        self._now: tuple[keras.Model, OptimizerTakeover, Steps | None] | None = None

    @contextmanager
    def __call__(self, model: keras.Model, takeover: OptimizerTakeover, steps: Steps | None = None) -> Iterator[None]:
        """Hold the model in the block, and restore it at its end."""
        before, self._now = self._now, (model, takeover, steps)
        try:
            with given_back(model, takeover):
                yield
        finally:
            self._now = before

    def steps_of(self, model: keras.Model) -> Steps | None:
        """The steps of the current fit(), if it trains this model."""
        return self._now[2] if self._now is not None and self._now[0] is model else None

    @contextmanager
    def as_compiled(self, model: keras.Model) -> Iterator[None]:
        """The model as its author compiled it, while a callback of fit() saves it."""
        if self._now is None or self._now[0] is not model:
            yield
            return
        with as_compiled(self._now[1]):
            yield
