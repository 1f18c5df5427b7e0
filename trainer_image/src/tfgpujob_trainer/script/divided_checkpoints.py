"""Checkpoints of a sharded model: the whole values, in the form of the trainer's other checkpoints.

So another mesh, or one device, can continue them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_contract import phases
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer import __version__
from tfgpujob_trainer.checkpoints.directory import Owner
from tfgpujob_trainer.checkpoints.state import OF_STATE, apart, together
from tfgpujob_trainer.checkpoints.store import Saved, Store, variables_to_save
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.distribution.processes import from_first, greatest
from tfgpujob_trainer.model.optimizers import build_all
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.script.divided_check import has_weights
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
    batches: int = 0
    """Trained in the epoch after these, if it was interrupted."""
    logs: dict[str, float] = field(default_factory=dict)
    metrics: list[Any] = field(default_factory=list)
    """The values of the metrics' variables after them."""
    callbacks: dict[str, Any] = field(default_factory=dict)
    """What CallbackState.changed() returned."""


class DividedCheckpoints:
    """The checkpoints of one fit(). The first process reads and writes them, and all take part."""

    def __init__(
        self, model: keras.Model, output: Path, settings: TrainerConfig, env: Environment, heartbeat: Heartbeat
    ) -> None:
        owner = Owner(job_uid=env.job_uid, attempt=env.attempt, replica_restart=env.replica_restart, round=env.round)
        self._model, self._heartbeat, self.is_first = model, heartbeat, env.is_chief
        self._store = Store(output, owner, keep=settings.checkpoint.keep)
        if self.is_first:
            self._store.take_ownership()
        self._run = json.dumps({"job": env.job, "program": sys.argv, "trainer": __version__})

    def restore(self) -> Reached:
        """Restore the variables from the newest checkpoint, if there is one."""
        saved = self._store.latest() if self.is_first else None
        reader = None if saved is None else saved.reader()
        sent = b"" if saved is None or reader is None else json.dumps([saved.state["fit"], _of_state(reader)]).encode()
        (length,) = greatest([len(sent)])
        if not length:
            return Reached()
        variables = self._variables()
        if saved is not None:
            _check(saved, variables)

        def array(name: str, dtype: str, shape: Any) -> np.ndarray:
            any_ = np.empty(shape, tf.as_dtype(dtype).as_numpy_dtype)
            return from_first(any_ if reader is None else reader.get_tensor(name))

        for name, variable in variables.items():
            variable.assign(array(name, variable.dtype, variable.shape))
        state, kinds = json.loads(from_first(np.frombuffer(sent.ljust(length), np.uint8)).tobytes())
        return Reached(**together(state, {name: array(name, *kind) for name, kind in kinds.items()}))

    def save(self, reached: Reached) -> None:
        """Write everything, and return when it is published."""
        self._heartbeat.beat(phases.SAVING, reached.step)
        began = time.monotonic()
        state, of_state = apart({"fit": asdict(reached)})
        arrays = _Gathered(self._variables() | of_state)
        if self.is_first:
            path = self._store.save(reached.step, arrays, state, self._run)
            known = published(path, reached.step, time.monotonic() - began)
            self._heartbeat.run_status.update(lastCheckpoint=known)
        else:
            for name in sorted(arrays):
                _ = arrays[name]
        greatest([0])  # published, for all of them
        self._heartbeat.beat(phases.TRAINING, reached.step)

    def _variables(self) -> dict[str, Any]:
        model = self._model
        if not has_weights(model):
            raise ConfigError(
                "the model has no weights yet, and fit() is to continue from a checkpoint",
                "begin the model with keras.Input(shape), or call model.build(shape) before fit()",
            )
        if model.optimizer is not None:
            build_all(model.optimizer, model.trainable_variables)
        return variables_to_save(model)


class _Gathered(Mapping[str, np.ndarray]):
    """Arrays, and the whole values of variables. Each of these is gathered when it is looked up, so that they are not
    in memory together.
    """

    def __init__(self, held: Mapping[str, Any]) -> None:
        self._held = held

    def __getitem__(self, name: str) -> np.ndarray:
        value = self._held[name]
        return np.asarray(keras.ops.convert_to_numpy(getattr(value, "value", value)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def _of_state(reader: tf.train.CheckpointReader) -> dict[str, tuple[str, list[int]]]:
    """Type and shape of the arrays of its state."""
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    return {name: (types[name].name, shapes[name]) for name in sorted(shapes) if name.startswith(OF_STATE)}


def _check(saved: Saved, variables: Mapping[str, Any]) -> None:
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    there = saved.reader().get_variable_to_shape_map()
    of_model = {name: tuple(shape) for name, shape in there.items() if not name.startswith(OF_STATE)}
    differing = sorted({*shapes.items()} ^ {*of_model.items()})
    if differing:
        raise ConfigError(
            f"the checkpoint in {saved.path} is of another model: {differing[0][0]} differs",
            "give the job an output of its own (output.subPath in its claim); locally: --fresh",
        )
