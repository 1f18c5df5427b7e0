"""Builds model, data and steps under a strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import keras
import tensorflow as tf

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.cluster.devices import placement_devices
from tfgpujob_trainer.contract.config import evaluates
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.schedule import Schedule, describe_batch
from tfgpujob_trainer.data.sources.batches import Batches
from tfgpujob_trainer.data.splits import make_schedule
from tfgpujob_trainer.model import metrics, recompute_and_placement, step_memory
from tfgpujob_trainer.model.build import build
from tfgpujob_trainer.model.moving_statistics import synchronized_normalizations
from tfgpujob_trainer.model.own_steps import refuse_own_functions
from tfgpujob_trainer.model.replica_seeds import draw_notes
from tfgpujob_trainer.model.taken_over import take_over
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.train.built_model import Built, Steps
from tfgpujob_trainer.train.equal_weights import take_the_chiefs
from tfgpujob_trainer.train.fit import Fit
from tfgpujob_trainer.train.session import Session
from tfgpujob_trainer.train.trainer import Trainer

S = TypeVar("S", bound=Steps)


def build_model(fit: Fit, session: Session, trainer: Trainer[S]) -> Built[S]:
    """Build model, data and steps; raises ConfigError if they are not compatible."""
    settings, name, data = fit.settings, session.name, fit.split("train")
    assert data is not None
    placement = settings.placement or {}
    head = data.head(2)
    policy = trainer.data_policy(data)
    devices = placement_devices(placement, session.strategy)
    with recompute_and_placement.create_on_devices(placement, devices):
        model = fit.model()
    refuse_own_functions(model)
    takeover = take_over(model, name, settings.accumulate, of_script=fit.of_script)
    check_precision(settings, model)
    built = build(model, head, name)
    take_the_chiefs(model.weights, session.peers)  # before replicas are compared
    schedule = make_schedule(settings, data, session.replicas, takeover.accumulate, field=fit.batch_field)
    if synchronized_normalizations(model) and schedule.remainder == "step":
        # A replica without rows computes another replica's rows (step/stand_in.py), which would count in their
        # statistics.
        schedule = replace(schedule, remainder="carry")
    if isinstance(data, Batches) and schedule.remainder != "step":
        data.check(schedule.replicas)
    validation = fit.split("validation") if evaluates(settings.evaluate) or session.env.is_evaluator else None
    steps = trainer.build_steps(model, takeover, data, schedule)
    arranged = recompute_and_placement.rewrite_layers(model, settings.recompute or (), placement, devices, name)
    for line in (
        describe_batch(schedule, session.env),
        f"shard policy {policy}",
        *data.notes,
        *takeover.notes,
        *_executions(model),
        *built,
        *metrics.kept_over_resets(model),
        *(metrics.variables_as_results(model) if validation is not None else []),
        *arranged,
        *draw_notes(model, name),
        *steps.notes,
        *schedule.notes,
        *memory_warnings(fit, session, model, schedule),
    ):
        say(line)
    return Built(
        fit=fit,
        session=session,
        model=model,
        takeover=takeover,
        steps=steps,
        schedule=schedule,
        data=data,
        validation=validation,
        test=fit.split("test"),
    )


def _executions(model: keras.Model) -> list[str]:
    several = model.steps_per_execution
    return [f"steps_per_execution={several}: each step is one of its own, as are its callbacks"] if several > 1 else []


def memory_warnings(fit: Fit, session: Session, model: keras.Model, schedule: Schedule) -> list[str]:
    """For replicas on CPUs: TensorFlow reports a GPU's lack of memory, and recompute needs less."""
    env, replicas = session.env, session.replicas
    if env.is_asynchronous or fit.settings.recompute or tf.config.list_logical_devices("GPU"):
        return []
    here = replicas if env.on_one_machine else replicas // len(env.peers)
    rows = -(-schedule.global_batch_size * here // (replicas * schedule.accumulate))
    return step_memory.warnings(model, rows=rows, replicas=here, field=fit.batch_field)


def check_precision(settings: TrainerConfig, model: keras.Model) -> None:
    """Raise ConfigError if the module chose another precision than the configuration."""
    found = model.dtype_policy.name
    if settings.precision is not None and found != settings.precision:
        raise ConfigError(
            f"the model computes in {found}, trainer.precision is {settings.precision}", "say it in one place"
        )
