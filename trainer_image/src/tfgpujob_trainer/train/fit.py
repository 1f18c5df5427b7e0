"""One training, whatever describes it: the functions of a module, or the arguments of a script's fit()."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.data.splits import ModuleRows
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.train.callbacks import Hooks, chiefs


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What is trained on which rows, and how."""

    settings: TrainerConfig
    code: Path | None
    """The file whose hash is in the checkpoints."""
    model: Callable[[], keras.Model]
    """Makes the compiled model. Called once, on the devices of its placement."""
    split: Callable[[str], Source | None]
    """The rows of `train`, which is read first, and of `validation` and `test`, if there are any."""
    names: Callable[[str], str]
    """The name of a split in errors."""
    hooks: Callable[[keras.Model, int, int], Hooks]
    """Makes the callbacks for the model, a number of epochs, and one of steps of an epoch."""
    initial_epoch: int = 0
    of_script: bool = False

    @property
    def batch_field(self) -> str:
        """What gives the size of a global batch."""
        return "batch_size" if self.of_script else "trainer.globalBatchSize"


def fit_of_module(settings: TrainerConfig, module: Entrypoint, env: Environment, heartbeat: Heartbeat) -> Fit:
    """What the functions of a user's module say."""

    def hooks(model: keras.Model, epochs: int, steps: int) -> Hooks:
        params = {"epochs": epochs, "steps": steps}
        return chiefs(module.callbacks, is_chief=env.is_chief, model=model, params=params)

    rows = ModuleRows(settings, module, heartbeat)
    name = "data({!r})".format
    return Fit(settings=settings, code=module.file, model=module.model, split=rows, names=name, hooks=hooks)
