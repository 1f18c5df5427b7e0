"""Assembles a run: opens checkpoints, lets workers agree on the data, and sets up progress and callbacks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import keras
import tensorflow as tf

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.checkpoints.in_memory import InMemoryCheckpoints
from tfgpujob_trainer.checkpoints.initial_weights import load_initial_weights
from tfgpujob_trainer.checkpoints.manager import CheckpointManager
from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.checkpoints.open_stores import open_stores
from tfgpujob_trainer.checkpoints.store import variables_to_save
from tfgpujob_trainer.cluster.peers import Peers, measure_all_reduce
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.support import require
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.data.splits import agree_on_data
from tfgpujob_trainer.model.replica_seeds import global_draw_notes
from tfgpujob_trainer.reporting import series
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.profiler import Profiler
from tfgpujob_trainer.reporting.run_json import code_hash, describe_run
from tfgpujob_trainer.reporting.tensorboard_scalars import Scalars
from tfgpujob_trainer.reporting.timing import WorkerTimes
from tfgpujob_trainer.reporting.training_log import TrainingLog
from tfgpujob_trainer.train.best import Best
from tfgpujob_trainer.train.built_model import Built, Steps
from tfgpujob_trainer.train.equal_weights import take_the_chiefs
from tfgpujob_trainer.train.run import Position, Run
from tfgpujob_trainer.train.trainer import Evaluate

S = TypeVar("S", bound=Steps)


_OF_SCRIPT = (
    "give map() num_parallel_calls=tf.data.AUTOTUNE, or let cache() follow what is slow, where its rows fit into memory"
)
"""Advice for a script when training waits for data: it has no trainer.data."""


def assemble(built: Built[S], evaluate: Evaluate) -> Run[S]:
    """Everything that training needs, with the checkpoints opened."""
    fit, session, settings = built.fit, built.session, built.fit.settings
    env, peers, heartbeat = session.env, session.peers, session.heartbeat
    if settings.best.monitor is not None and built.validation is None:
        fix = "let data('validation') return rows, or remove trainer.best"
        raise ConfigError("trainer.best has nothing to judge: there is no validation split", fix)
    splits = {"train": built.data, "validation": built.validation, "test": built.test}
    agree_on_data({fit.names(split): data for split, data in splits.items()}, peers)
    measure_all_reduce(peers)
    say(describe_gradients(built.model))
    steps_per_epoch = built.schedule.steps_per_epoch
    total_steps = settings.steps or ((settings.epochs or 0) - fit.initial_epoch) * steps_per_epoch
    epochs = fit.initial_epoch - (-total_steps // steps_per_epoch)
    hooks = fit.hooks(built.model, epochs, steps_per_epoch)
    output = Path(settings.output.directory)
    store, best_store = open_stores(output, settings, env, peers)
    captured = {id(v.value): v for v in (*built.steps.captured, *hooks.variables)}
    drawn = require("tf.random", session.name, "tf.random in the step") if built.steps.draws else []
    for note in (*drawn, *global_draw_notes(session.name)):
        say(note)
    variables = variables_to_save(built.model, list(captured.values()))
    which = str(output.relative_to(session.job.output.directory)) if fit.of_script else ""
    manager = partial(
        CheckpointManager,
        variables=variables,
        identity={
            "globalBatchSize": settings.global_batch_size,
            "seed": settings.seed,
            "rows of training data": built.data.rows,
            "arrays of training data": built.data.signature(),
        },
        config={
            "params": dict(settings.params),
            "args": list(settings.args or ()),
            "code": code_hash(fit.code),
            "epochs": settings.epochs,
        },
        run_json=run_json(built),
    )
    checkpoints = manager(
        store,
        start=lambda peers: start_from(settings, built.model, list(variables.values()), peers),
        published=lambda *saved: heartbeat.run_status.update(lastCheckpoint=published(*saved)),
        in_memory=in_memory(variables, of=which),
    )
    log = TrainingLog(
        steps=total_steps,
        epochs=epochs,
        log_every_seconds=settings.log_every_seconds,
        input_fix=input_fix(settings, of_script=fit.of_script),
        run_status=heartbeat.run_status,
        workers=WorkerTimes(env.worker_names),
        one_machine=env.on_one_machine,
        batch_field=fit.batch_field,
        scalars=Scalars(output / "tensorboard") if peers.is_chief else None,
        series_file=output / series.FILE if peers.is_chief else None,
    )
    profiled = settings.profile.steps if settings.profile.worker == env.position else None
    return Run(
        config=settings,
        built=built,
        total_steps=total_steps,
        evaluate=evaluate,
        peers=peers,
        checkpoints=checkpoints,
        best=Best(settings.best, manager(best_store), peers),
        callbacks=hooks,
        heartbeat=heartbeat,
        stop=session.stop,
        log=log,
        profiler=Profiler(profiled, output / "profile"),
        first=Position(epoch=fit.initial_epoch),
    )


def in_memory(variables: Mapping[str, Any], *, of: str) -> InMemoryCheckpoints | None:
    """The in-memory checkpoints of this process, if its supervisor keeps any."""
    file = MemoryFile.from_environment()
    return None if file is None else InMemoryCheckpoints(file, variables, of=of)


def published(path: Path, step: int, seconds: float) -> dict[str, Any]:
    """What /progress reports of a checkpoint that was just committed."""
    return {
        "step": step,
        "directory": str(path),
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": math.ceil(seconds),
    }


def run_json(built: Built[Steps]) -> str:
    """The description of the run in each of its checkpoints."""
    fit, session = built.fit, built.session
    devices, replicas = session.strategy.extended.worker_devices, session.replicas
    return json.dumps(describe_run(fit.settings, session.env, fit.code, devices=devices, replicas=replicas), indent=1)


def start_from(settings: TrainerConfig, model: keras.Model, variables: Sequence[Any], peers: Peers) -> None:
    """Prepare a run that has nothing to resume from. `variables`: those of its checkpoints."""
    if settings.initial_weights is not None and peers.is_chief:
        load_initial_weights(settings.initial_weights, model, new_layers=settings.new_layers or ())
    take_the_chiefs(variables, peers)


def describe_gradients(model: keras.Model) -> str:
    """`gradients of a step: 148904 bytes for 37226 trainable weights`, if none is sparse."""
    variables = model.trainable_variables
    weights = [math.prod(variable.shape) for variable in variables]
    size = sum(n * tf.as_dtype(v.dtype).size for n, v in zip(weights, variables, strict=True))
    return f"gradients of a step: {counted(size, 'byte')} for {counted(sum(weights), 'trainable weight')}"


def input_fix(settings: TrainerConfig, *, of_script: bool) -> str:
    """Advice when training waits for data."""
    if of_script:
        return _OF_SCRIPT
    more = f"raise trainer.data.parallelReads ({settings.data.parallel_reads})"
    return f"set trainer.data.cache, or {more}" if settings.data.cache == "none" else more
