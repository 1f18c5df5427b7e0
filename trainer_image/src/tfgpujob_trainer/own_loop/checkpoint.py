"""Checkpoints of a training loop's own objects, written, published and fenced like the trainer's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfgpujob_contract import phases
from tfgpujob_trainer import __version__
from tfgpujob_trainer.checkpoints.directory import Owner
from tfgpujob_trainer.checkpoints.manager import CheckpointManager
from tfgpujob_trainer.checkpoints.store import Store
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.variables import PlainVariable
from tfgpujob_trainer.own_loop.task import Task
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.train.assemble import published


class Checkpoint:
    """All variables of some objects, by the step after which they were saved. Every worker must call every method."""

    def __init__(self, task: Task, directory: Path, keep: int, objects: Mapping[str, Any]) -> None:
        self._task, env = task, task.env
        owner = Owner(job_uid=env.job_uid, attempt=env.attempt, replica_restart=env.replica_restart, round=env.round)
        store = Store(directory, owner, keep=keep)
        if task.peers.is_chief:
            store.take_ownership()
        self._manager = CheckpointManager(
            store,
            named(objects),
            identity={},
            config={},
            run_json=json.dumps({"job": env.job, "program": sys.argv, "trainer": __version__}),
            published=lambda *saved: task.run_status.update(lastCheckpoint=published(*saved)),
        )

    def restore(self) -> int:
        """Restore all variables from the newest complete checkpoint; returns its step, 0 without one."""
        restored = self._manager.restore(self._task.peers)
        if restored is None:
            return 0
        step = int(restored["step"])
        say(f"resuming after step {step}")
        return step

    def save(self, step: int) -> None:
        """Save all variables. Returns, on every worker, when the checkpoint is published."""
        self._task.run_status.beat()
        self._task.run_status.update(phase=phases.SAVING, step=step)
        self._manager.save(self._task.peers, step, lambda: {"step": step})
        self._manager.wait()
        self._task.peers.count(True)
        self._task.run_status.beat()
        self._task.run_status.update(phase=phases.TRAINING)


def named(objects: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of these objects by names that are the same at each start. Raises ConfigError if one has no such
    name.
    """
    found: dict[str, Any] = {}
    for name, value in objects.items():
        variables = list(_variables(value))
        if not variables:
            raise ConfigError(
                f"checkpoint({name}=...): {type(value).__name__} has no variables yet",
                "build it first: model.build(shape), optimizer.build(model.trainable_variables)",
            )
        for number, variable in enumerate(variables):
            path = getattr(variable, "path", None) or variable.name.split(":")[0]
            found[f"{name}/{number:04d}/{path}"] = (
                PlainVariable(path, variable) if isinstance(variable, tf.Variable) else variable
            )
    if not found:
        raise ConfigError("checkpoint() is given nothing to save", "such as model=model, optimizer=optimizer")
    return found


def _variables(value: Any) -> Iterator[Any]:
    if isinstance(value, Sequence):
        for one in value:
            yield from _variables(one)
    elif hasattr(value, "variables"):  # before assign, which Keras' optimizers have too
        yield from value.variables() if callable(value.variables) else value.variables
    elif hasattr(value, "assign"):
        yield value
