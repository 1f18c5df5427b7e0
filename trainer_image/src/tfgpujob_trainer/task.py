"""The training process: builds everything in order, trains, exports, and reports its end to the supervisor."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfgpujob_trainer import config, entrypoint, environment, heartbeat, strategy
from tfgpujob_trainer.checkpoint import Owner, Store, named
from tfgpujob_trainer.completed import Mark
from tfgpujob_trainer.config import TrainerConfig
from tfgpujob_trainer.data import Schedule, Source, source
from tfgpujob_trainer.describe import code_hash, describe_batch, describe_run
from tfgpujob_trainer.entrypoint import Entrypoint
from tfgpujob_trainer.environment import Environment
from tfgpujob_trainer.exits import ConfigError, ExitCode, Outcome, classify
from tfgpujob_trainer.finish import finish
from tfgpujob_trainer.heartbeat import Heartbeat
from tfgpujob_trainer.lift import Lifted, lift
from tfgpujob_trainer.loop import Run, StopFlag, train
from tfgpujob_trainer.loss import stop_keras_scaling_by_replicas
from tfgpujob_trainer.main import parser
from tfgpujob_trainer.peers import Peers
from tfgpujob_trainer.progress import Progress, say
from tfgpujob_trainer.resume import Resume
from tfgpujob_trainer.step import Steps, batch_spec, build

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def main(arguments: Sequence[str]) -> None:
    """Run one task and end the process; TensorFlow's own threads could otherwise still change the exit code."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)
    heart = Heartbeat.from_environment()
    heart.beat(heartbeat.STARTING)
    options = parser().parse_args(arguments)
    settings, env = config.load(options.config, options.set), environment.read(os.environ)
    try:
        outcome = run_task(settings, env, heart)
    except BaseException as error:  # noqa: BLE001 (every end is mapped)
        outcome = classify(error, has_peers=len(env.peers) > 1)
        if outcome.code == ExitCode.FAILED:
            traceback.print_exc()
    heart.ended(outcome)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(outcome.code))


def run_task(settings: TrainerConfig, env: Environment, heart: Heartbeat) -> Outcome:
    """Train, evaluate and export; the summary of what was done."""
    devices = strategy.prepare(env, seed=settings.seed, deterministic=settings.deterministic, say=say)
    module = entrypoint.load(settings.entrypoint, settings.params, env.code_directory)
    strategy.resolve_peers(env.peers, say)
    strategy_ = strategy.build(env, devices, settings.watchdog.step_seconds)
    stop = StopFlag()
    stop.listen()
    heart.stoppable()
    stop_keras_scaling_by_replicas()
    with strategy_.scope():
        run, lifted = assemble(settings, env=env, heart=heart, strategy_=strategy_, module=module, stop=stop)
    position = train(run)
    summary = finish(run, module, lifted, position)
    return Outcome(code=ExitCode.DONE, cause="Completed", message=f"done after {position.step} steps", summary=summary)


def assemble(
    settings: TrainerConfig,
    *,
    env: Environment,
    heart: Heartbeat,
    strategy_: tf.distribute.Strategy,
    module: Entrypoint,
    stop: StopFlag,
) -> tuple[Run, Lifted]:
    """Build model, data, steps and checkpoints; raises ConfigError for whatever does not fit together."""
    peers = Peers(strategy_, workers=max(1, len(env.peers)), is_chief=env.is_chief)
    data = source(module.data("train"), "train")
    validation = source(module.data("validation"), "validation") if settings.evaluate.every_epochs else None
    model = module.model()
    lifted = lift(model)
    build(model, data.take(slice(0, 2)))
    steps = Steps(strategy_, model, lifted, batch_spec(data.arrays))
    schedule = make_schedule(settings, data, strategy_.num_replicas_in_sync)
    for line in (describe_batch(schedule, env), *lifted.notes, *steps.notes, *schedule.notes):
        say(line)
    total_steps = settings.steps or (settings.epochs or 0) * schedule.steps_per_epoch
    run_json = json.dumps(describe_run(settings, env, strategy_, module), indent=1)
    output = Path(settings.output.directory)
    resume = Resume(
        open_store(output, settings, env, peers),
        variables_to_save(model),
        identity={
            "globalBatchSize": settings.global_batch_size,
            "seed": settings.seed,
            "rows of training data": data.rows,
            "arrays of training data": data.signature(),
        },
        config={"params": dict(settings.params), "code": code_hash(module), "epochs": settings.epochs},
        run_json=run_json,
        say=say,
    )
    run = Run(
        config=settings,
        strategy=strategy_,
        model=model,
        steps=steps,
        data=data,
        validation=validation,
        schedule=schedule,
        total_steps=total_steps,
        first_replica=strategy.first_replica(strategy_, env),
        peers=peers,
        resume=resume,
        heart=heart,
        stop=stop,
        progress=Progress(
            steps=total_steps,
            epochs=-(-total_steps // schedule.steps_per_epoch),
            log_every_seconds=settings.log_every_seconds,
        ),
    )
    return run, lifted


def make_schedule(settings: TrainerConfig, data: Source, replicas: int) -> Schedule:
    """Which rows make up each global batch; raises ConfigError if they cannot be split over the replicas."""
    for name, rows in (("data('train') has", data.rows), ("trainer.globalBatchSize is", settings.global_batch_size)):
        if rows < replicas:
            raise ConfigError(f"{name} {rows} for {replicas} replicas", "each replica needs at least one row a step")
    return Schedule(
        rows=data.rows,
        global_batch_size=settings.global_batch_size,
        replicas=replicas,
        seed=settings.seed,
        remainder=settings.remainder,
    )


def open_store(output: Path, settings: TrainerConfig, env: Environment, peers: Peers) -> Store:
    """The checkpoint store; says so when the workers do not share the directory it is in."""
    owner = Owner(job_uid=env.job_uid, attempt=env.attempt, replica_restart=env.replica_restart)
    store = Store(output, owner, keep=settings.checkpoint.keep, say=say)
    if peers.is_chief:
        store.take_ownership()
    if not is_shared(output, peers):
        say(
            f"{output} is not shared by the workers: only {'this' if peers.is_chief else 'the first'} worker's "
            "directory holds checkpoints and the model; set trainer.output.claim to a shared volume to keep them"
        )
    Mark(output).remove()
    return store


def is_shared(output: Path, peers: Peers) -> bool:
    """Whether every worker sees a file that the chief writes."""
    token = peers.from_chief(f".shared-{time.time_ns()}".encode()).decode()
    probe = output / "checkpoints" / token
    if peers.is_chief:
        probe.touch()
    peers.count(True)
    seen = peers.count(probe.exists())
    if peers.is_chief:
        probe.unlink()
    return seen == peers.workers


def variables_to_save(model: keras.Model) -> dict[str, Any]:
    """Every variable of the model but its metrics' (weights, statistics, SeedGenerators) and its optimizer."""
    metrics = {id(v) for v in model.metrics_variables}
    own = [v for v in model.variables if id(v) not in metrics]
    return {**named("model", own), **named("optimizer", model.optimizer.variables)}


if __name__ == "__main__":
    main(sys.argv[1:])
