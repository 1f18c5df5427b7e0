"""Runs the trainer's own loop in the test process, under OneDevice or Mirrored on logical CPU devices."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.cluster.strategy import build_strategy
from tfgpujob_trainer.contract import config, environment
from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.data.in_order import keep_rows_in_order
from tfgpujob_trainer.model.loss import stop_keras_scaling_by_replicas
from tfgpujob_trainer.model.replica_seeds import let_first_replica_draw_alike
from tfgpujob_trainer.model.variables import local_value
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.script.takeover import Takeover
from tfgpujob_trainer.step.jit import remember_auto
from tfgpujob_trainer.train.assemble import assemble
from tfgpujob_trainer.train.build import build_model
from tfgpujob_trainer.train.fit import fit_of_module
from tfgpujob_trainer.train.loop import SynchronousTrainer
from tfgpujob_trainer.train.run import Run
from tfgpujob_trainer.train.session import Session

WORKERS = 0
"""In place of a number of devices: the workers of TF_CONFIG, of which this process is one."""


def prepare() -> None:
    """Two logical CPU devices, so that Mirrored is real, and what a training process does before it builds."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    stop_keras_scaling_by_replicas()
    remember_auto()
    keep_rows_in_order()
    let_first_replica_draw_alike()


def entrypoint(make_model: Any, data: Any, validation: Any = None, callbacks: Any = None) -> Entrypoint:
    """A module made of these functions and arrays."""
    module = ModuleType("made_for_a_test")
    module.__file__ = os.devnull
    module.model = make_model  # type: ignore[attr-defined]

    def splits(split: str) -> Any:
        return {"train": data, "validation": validation}.get(split)

    module.data = splits  # type: ignore[attr-defined]
    if callbacks is not None:
        module.callbacks = callbacks  # type: ignore[attr-defined]
    return Entrypoint("made_for_a_test", module, {})


def train_here(
    make_model: Any,
    data: Any,
    *,
    validation: Any = None,
    callbacks: Any = None,
    **how: Any,
) -> Run[Any]:
    """Train a model made by a function to the end, as train_module does; the run with its trained model."""
    return train_module(entrypoint(make_model, data, validation, callbacks), **how)


def train_module(
    module: Entrypoint,
    *,
    devices: int,
    epochs: int | None,
    batch: int,
    seed: int,
    output: Path | None = None,
    store: str | None = None,
    heartbeat: Heartbeat | None = None,
    **more: Any,
) -> Run[Any]:
    """Train a user's module to the end; `more` are other fields of spec.trainer."""
    with ExitStack() as stack:
        directory = output or stack.enter_context(tempfile.TemporaryDirectory())
        settings = config.parse(
            {
                "entrypoint": "made_for_a_test",
                "globalBatchSize": batch,
                "epochs": epochs,
                "seed": seed,
                "output": {"directory": str(directory), "store": store},
                "checkpoint": {"everyEpochs": 1000},
                **more,
            }
        )
        if settings.precision is not None:
            keras.config.set_dtype_policy(settings.precision)
        session = session_of(settings, devices, heartbeat)
        with session.strategy.scope():
            trainer = SynchronousTrainer(settings, session)
            built = build_model(fit_of_module(settings, module, session.env, session.heartbeat), session, trainer)
            run = assemble(built, trainer.evaluator(built))
        trainer.train(run)
        return run


def session_of(
    job: TrainerConfig, devices: int = 1, heartbeat: Heartbeat | None = None, env: Environment | None = None
) -> Session:
    """The session of a job over this number of devices."""
    own = env or environment_over(devices)
    return Session(job=job, env=own, strategy=strategy_over(devices), heartbeat=heartbeat or Heartbeat(None))


def takeover_of(output: Path, devices: int = 1, *, env: Environment | None = None, **fields: Any) -> Takeover:
    """What executes the calls of a script that writes there; `fields` are others of spec.trainer."""
    job = config.parse({"entrypoint": "a.py", "output": {"directory": str(output)}, **fields})
    return Takeover(Path(__file__), session_of(job, devices, env=env))


@cache
def strategy_over(devices: int) -> tf.distribute.Strategy:
    """One strategy for all tests: a second one over the same devices would reuse the collectives' keys."""
    return build_strategy(environment_over(devices), [f"/cpu:{i}" for i in range(devices)])


def environment_over(devices: int) -> Environment:
    """The environment of the job with that strategy."""
    if devices == WORKERS:
        return environment.read(os.environ)
    return Environment(strategy="Mirrored" if devices > 1 else "OneDevice")


def weights_of(run: Run[Any]) -> list[np.ndarray]:
    """The trained weights."""
    return [local_value(v) for v in run.built.model.weights]
