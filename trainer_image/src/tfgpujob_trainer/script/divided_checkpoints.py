"""Checkpoints of a sharded model: the whole values, in the form of the trainer's other checkpoints.

So another mesh, or one device, can continue them.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import keras

from tfgpujob_trainer import __version__
from tfgpujob_trainer.checkpoints.directory import Owner
from tfgpujob_trainer.checkpoints.store import Store, variables_to_save
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.spec import TrainerConfig
from tfgpujob_trainer.model.optimizers import build_all
from tfgpujob_trainer.reporting import phases
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.train.assemble import published


@dataclass(slots=True)
class Reached:
    """The progress of a fit(): optimizer steps, epochs, and what History keeps of them."""

    step: int = 0
    epoch: int = 0
    planned: int = 0
    """Epochs that fit() was called with."""
    done: bool = False
    epochs: list[int] = field(default_factory=list)
    history: dict[str, list[float]] = field(default_factory=dict)


class DividedCheckpoints:
    """The checkpoints of one fit()."""

    def __init__(
        self, model: keras.Model, output: Path, settings: TrainerConfig, env: Environment, heartbeat: Heartbeat
    ) -> None:
        owner = Owner(job_uid=env.job_uid, attempt=env.attempt, replica_restart=env.replica_restart, round=env.round)
        self._model, self._heartbeat = model, heartbeat
        self._store = Store(output, owner, keep=settings.checkpoint.keep, say=say)
        self._store.take_ownership()
        self._run = json.dumps({"job": env.job, "program": sys.argv, "trainer": __version__})

    def restore(self) -> Reached:
        """Restore the variables from the newest checkpoint, if there is one."""
        saved = self._store.latest()
        if saved is None:
            return Reached()
        variables, arrays = self._variables(), saved.arrays()
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        differing = sorted({*shapes.items()} ^ {(name, array.shape) for name, array in arrays.items()})
        if differing:
            raise ConfigError(
                f"the checkpoint in {saved.path} is of another model: {differing[0][0]} differs",
                "give the job an output of its own (output.subPath in its claim); locally: --fresh",
            )
        for name, variable in variables.items():
            variable.assign(arrays[name])
        return Reached(**saved.state["fit"])

    def save(self, reached: Reached) -> None:
        """Write everything, and return when it is published."""
        self._heartbeat.beat(phases.SAVING, reached.step)
        began = time.monotonic()
        arrays = {name: keras.ops.convert_to_numpy(v.value) for name, v in self._variables().items()}
        path = self._store.save(reached.step, arrays, {"fit": asdict(reached)}, self._run)
        known = published(path, reached.step, time.monotonic() - began)
        self._heartbeat.run_status.update(lastCheckpoint=known)
        self._heartbeat.beat(phases.TRAINING, reached.step)

    def _variables(self) -> dict[str, Any]:
        model = self._model
        if not model.built:
            raise ConfigError(
                "the model has no weights yet, and fit() is to continue from a checkpoint",
                "begin the model with keras.Input(shape), or call model.build(shape) before fit()",
            )
        if model.optimizer is not None:
            build_all(model.optimizer, model.trainable_variables)
        return variables_to_save(model)
