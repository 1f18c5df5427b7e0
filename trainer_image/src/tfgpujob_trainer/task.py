"""The training process: builds everything in order, trains, exports, and reports its end to the supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import keras
import tensorflow as tf

from tfgpujob_trainer.checkpoint.initial_weights import load_initial_weights
from tfgpujob_trainer.checkpoint.open_stores import open_stores
from tfgpujob_trainer.checkpoint.resume import Resume
from tfgpujob_trainer.checkpoint.store import variables_to_save
from tfgpujob_trainer.cluster import strategy
from tfgpujob_trainer.cluster.all_reduce_speed import measure_all_reduce
from tfgpujob_trainer.cluster.collective_deadline import CollectiveDeadline
from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.cluster.stop import StopFlag
from tfgpujob_trainer.contract import config, entrypoint, environment
from tfgpujob_trainer.contract.command_line import parser
from tfgpujob_trainer.contract.config import TrainerConfig
from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.contract.environment import MULTI_WORKER_MIRRORED, PARAMETER_SERVER, Environment
from tfgpujob_trainer.contract.exits import ConfigError, ExitCode, Outcome, StoppedError, classify, users_traceback
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.data.schedule import Schedule, describe_batch
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.data.splits import agree_on_data, make_schedule, other_split, read
from tfgpujob_trainer.model import recompute_and_placement
from tfgpujob_trainer.model.batch import batch_spec
from tfgpujob_trainer.model.build import build
from tfgpujob_trainer.model.loss import stop_keras_scaling_by_replicas
from tfgpujob_trainer.model.optimizer_takeover import Lifted, lift
from tfgpujob_trainer.model.replica_seeds import draw_per_replica
from tfgpujob_trainer.parameter_server.dispatch import Dispatcher
from tfgpujob_trainer.parameter_server.evaluate import ServerEvaluator
from tfgpujob_trainer.parameter_server.loop import train_on_workers
from tfgpujob_trainer.parameter_server.rows import batch_policy
from tfgpujob_trainer.parameter_server.serve import serve
from tfgpujob_trainer.parameter_server.step import ServerSteps
from tfgpujob_trainer.predict.predict import predict
from tfgpujob_trainer.report import heartbeat
from tfgpujob_trainer.report.heartbeat import Heartbeat
from tfgpujob_trainer.report.log import say
from tfgpujob_trainer.report.profiler import Profiler
from tfgpujob_trainer.report.progress_endpoint import serve as serve_progress
from tfgpujob_trainer.report.run_json import code_hash, describe_run
from tfgpujob_trainer.report.tensorboard_scalars import Scalars
from tfgpujob_trainer.report.timing import Workers
from tfgpujob_trainer.report.training_log import Progress
from tfgpujob_trainer.step.synchronous import Steps
from tfgpujob_trainer.train.best import Best
from tfgpujob_trainer.train.built_model import Built
from tfgpujob_trainer.train.callbacks import Callbacks, check
from tfgpujob_trainer.train.evaluator_replica import follow
from tfgpujob_trainer.train.finish import finish
from tfgpujob_trainer.train.loop import train
from tfgpujob_trainer.train.run import Run

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
    deadline = CollectiveDeadline(heart.scoreboard, settings.watchdog.step_seconds)
    if env.strategy == MULTI_WORKER_MIRRORED and env.has_peers:
        deadline.start()
    try:
        outcome = (predict if settings.mode == "predict" else run_task)(settings, env, heart)
    except BaseException as error:  # noqa: BLE001 (every end is mapped)
        outcome = classify(error, has_peers=env.has_peers)
        if outcome.cause == "Exception":
            print(users_traceback(error), end="", file=sys.stderr)
        # Here, while the exception keeps the variables: deleting one would ask a parameter server that may be lost.
        end(outcome, heart, deadline)
    end(outcome, heart, deadline)


def end(outcome: Outcome, heart: Heartbeat, deadline: CollectiveDeadline) -> NoReturn:
    """Report the end, and end."""
    heart.ended(outcome)
    sys.stdout.flush()
    sys.stderr.flush()
    deadline.leave_after_the_stalled()
    os._exit(int(outcome.code))


def run_task(settings: TrainerConfig, env: Environment, heart: Heartbeat) -> Outcome:
    """Train, evaluate and export, or follow a training run as its evaluator; says how it ended."""
    if settings.precision is not None:
        keras.config.set_dtype_policy(settings.precision)
    strategy.leave_threads_for_reading(settings.data.parallel_reads)
    devices = strategy.prepare(env, seed=settings.seed, deterministic=settings.deterministic, say=say)
    if env.is_asynchronous and not env.is_chief:
        serve(settings, env, heart)
    module = entrypoint.load(settings.entrypoint, settings.params, env.code_directory)
    if env.progress_port:
        serve_progress(heart.scoreboard, env.progress_port, in_pod=env.in_pod, say=say)
    strategy.resolve_peers((*env.peers, *env.workers, *env.servers), say)
    strategy_ = strategy.build(env, devices)
    stop = StopFlag()
    stop.listen()
    heart.stoppable()
    stop_keras_scaling_by_replicas()
    with strategy_.scope():
        built = build_model(settings, env, strategy_, module, heart)
        if env.is_evaluator:
            return follow(settings, built, heart, stop)
        dispatcher = Dispatcher.of(strategy_, env, settings) if env.is_asynchronous else None
        run = assemble(settings, env, built, heart=heart, stop=stop, dispatcher=dispatcher)
    try:
        position, more = (train(run), {}) if dispatcher is None else train_on_workers(run, dispatcher, env)
        summary = finish(run, built.lifted, position, more)
        done = f"done after {counted(position.step, 'step')}"
        outcome = Outcome(code=ExitCode.DONE, cause="Completed", message=done, summary=summary)
    except StoppedError as error:
        outcome = error.outcome()
    # All work is done. A worker that leaves at once may take the others down before they have said so.
    heart.ended(outcome)
    with contextlib.suppress(tf.errors.OpError):
        run.peers.count(True)
    return outcome


def build_model(
    settings: TrainerConfig,
    env: Environment,
    strategy_: tf.distribute.Strategy,
    module: Entrypoint,
    heart: Heartbeat,
) -> Built:
    """Build model, data and steps; raises ConfigError for whatever does not fit together."""
    data = read(settings, module, "train", module.data("train"), heart)
    kind, head = strategy.kind(strategy_), data.head(2)
    policy = data.policy if kind != PARAMETER_SERVER else batch_policy(data)
    devices = strategy.placement_devices(settings.placement, strategy_)
    with recompute_and_placement.creating(settings.placement, devices):
        model = module.model()
    lifted = lift(model, kind, settings.accumulate)
    check_precision(settings, model)
    build(model, head, kind)
    schedule = make_schedule(settings, data, strategy_.num_replicas_in_sync, lifted.accumulate)
    steps = make_steps(settings, strategy_, model, lifted, data=data, schedule=schedule)
    if isinstance(steps, Steps):
        heart.scoreboard.waits_for_peers = steps.waits_for_peers
    arranged = recompute_and_placement.arrange(model, settings.recompute, settings.placement, devices, kind)
    for line in (
        describe_batch(schedule, env),
        f"shard policy {policy}",
        *data.notes,
        *lifted.notes,
        *arranged,
        *steps.notes,
        *schedule.notes,
    ):
        say(line)
    evaluates = settings.evaluate.every_epochs is not None or settings.evaluate.every_steps is not None
    return Built(
        strategy=strategy_,
        module=module,
        model=model,
        lifted=lifted,
        steps=steps,
        schedule=schedule,
        first_replica=strategy.first_replica(strategy_, env),
        data=data,
        validation=other_split(settings, module, "validation", data, heart) if evaluates or env.is_evaluator else None,
        test=other_split(settings, module, "test", data, heart),
    )


def make_steps(
    settings: TrainerConfig,
    strategy_: tf.distribute.Strategy,
    model: keras.Model,
    lifted: Lifted,
    *,
    data: Source,
    schedule: Schedule,
) -> Steps | ServerSteps:
    """The steps of a strategy; raises ConfigError for settings that it does not know."""
    head, weights = data.head(2), settings.class_weights
    if strategy.kind(strategy_) == PARAMETER_SERVER:
        spec = batch_spec(head)
        return ServerSteps(strategy_, model, lifted, spec, data.fingerprint(), class_weights=weights)
    draw_per_replica(model)
    jit = settings.jit == "replica"
    half = settings.all_reduce == "float16"
    rows = schedule.rows_per_replica
    return Steps(strategy_, model, lifted, head, rows=rows, jit=jit, half=half, class_weights=weights)


def assemble(
    settings: TrainerConfig,
    env: Environment,
    built: Built,
    *,
    heart: Heartbeat,
    stop: StopFlag,
    dispatcher: Dispatcher | None = None,
) -> Run:
    """Everything that training needs, with the checkpoints opened; `dispatcher` leads to the workers, if this is the
    chief of a ParameterServer job."""
    peers = Peers(built.strategy, workers=max(1, len(env.peers)), is_chief=env.is_chief)
    agree_on_data(built.data, peers)
    measure_all_reduce(peers, say)
    total_steps = settings.steps or (settings.epochs or 0) * built.schedule.steps_per_epoch
    output = Path(settings.output.directory)
    store, best_store = open_stores(output, settings, env, peers)
    keep = partial(
        Resume,
        variables=variables_to_save(built.model),
        identity={
            "globalBatchSize": settings.global_batch_size,
            "seed": settings.seed,
            "rows of training data": built.data.rows,
            "arrays of training data": built.data.signature(),
        },
        config={"params": dict(settings.params), "code": code_hash(built.module), "epochs": settings.epochs},
        run_json=run_json(settings, env, built),
        say=say,
    )
    resume = keep(
        store,
        start=lambda peers: start_from(settings.initial_weights, built.model, peers),
        published=lambda path, step: heart.scoreboard.update(lastCheckpoint=published(path, step)),
    )
    progress = Progress(
        steps=total_steps,
        epochs=-(-total_steps // built.schedule.steps_per_epoch),
        log_every_seconds=settings.log_every_seconds,
        input_fix=input_fix(settings),
        scoreboard=heart.scoreboard,
        workers=Workers(env.worker_names),
        scalars=Scalars(output / "tensorboard") if peers.is_chief else None,
    )
    if settings.best.monitor is not None and built.validation is None:
        fix = "let data('validation') return rows, or remove trainer.best"
        raise ConfigError("trainer.best has nothing to judge: there is no validation split", fix)
    callbacks = check(built.module.callbacks())
    params = {"epochs": progress.epochs, "steps": built.schedule.steps_per_epoch}
    profiled = settings.profile.steps if settings.profile.worker == env.position else None
    return Run(
        config=settings,
        built=built,
        total_steps=total_steps,
        evaluate=built.evaluator(heart) if dispatcher is None else ServerEvaluator(built, dispatcher, heart),
        peers=peers,
        resume=resume,
        best=Best(settings.best, keep(best_store), peers),
        callbacks=Callbacks(callbacks if peers.is_chief else [], built.model, params),
        heart=heart,
        stop=stop,
        progress=progress,
        profiler=Profiler(profiled, output / "profile", say),
    )


def published(path: Path, step: int) -> dict[str, Any]:
    """What /progress says of a checkpoint that has just been committed."""
    return {"step": step, "directory": str(path), "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


def run_json(settings: TrainerConfig, env: Environment, built: Built) -> str:
    """What each checkpoint says about the run that wrote it."""
    devices, replicas = built.strategy.extended.worker_devices, built.strategy.num_replicas_in_sync
    return json.dumps(describe_run(settings, env, built.module, devices=devices, replicas=replicas), indent=1)


def start_from(initial_weights: str | None, model: keras.Model, peers: Peers) -> None:
    """Prepare a run that has nothing to resume from."""
    if initial_weights is not None:
        load_initial_weights(initial_weights, model, peers, say)


def input_fix(settings: TrainerConfig) -> str:
    """What to set when training waits for data."""
    more = f"raise trainer.data.parallelReads ({settings.data.parallel_reads})"
    return f"set trainer.data.cache, or {more}" if settings.data.cache == "none" else more


def check_precision(settings: TrainerConfig, model: keras.Model) -> None:
    """Raise ConfigError if the module chose another precision than the configuration."""
    found = model.dtype_policy.name
    if settings.precision is not None and found != settings.precision:
        raise ConfigError(
            f"model() computes in {found}, trainer.precision is {settings.precision}", "say it in one place"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
