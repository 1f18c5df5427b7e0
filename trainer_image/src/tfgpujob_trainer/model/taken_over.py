"""A model whose optimizers, losses and random draws are the trainer's, from the start of a training to its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from tfgpujob_trainer.model.loss import give_back_losses
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover, give_back_optimizers, take_over_optimizer
from tfgpujob_trainer.model.own_steps import has_own_steps, leave_optimizers
from tfgpujob_trainer.model.replica_seeds import draw_as_compiled


def take_over(
    model: keras.Model, strategy: str, accumulate: int | None = None, *, of_script: bool = False
) -> OptimizerTakeover:
    """Take over the optimizers, as far as the model's steps are not its own. Raises ConfigError for what cannot be."""
    if has_own_steps(model):
        return leave_optimizers(model, strategy, accumulate)
    return take_over_optimizer(model, strategy, accumulate, of_script=of_script)


@contextmanager
def given_back(model: keras.Model, takeover: OptimizerTakeover) -> Iterator[None]:
    """Restore the model at the end of the block, as its author compiled it."""
    try:
        yield
    finally:
        give_back_optimizers(model, takeover)
        give_back_losses(model)
        draw_as_compiled(model)
