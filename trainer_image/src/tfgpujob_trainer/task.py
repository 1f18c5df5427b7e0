"""The training process: builds everything in order, trains, exports, and reports its end to the supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from tfgpujob_trainer.contract import quick_imports

# isort: split
import tensorflow as tf

from tfgpujob_contract import goodput, phases
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.cluster.collective_deadline import CollectiveDeadline
from tfgpujob_trainer.cluster.devices import leave_threads_for_reading, prepare
from tfgpujob_trainer.contract import config, entrypoint, environment, script
from tfgpujob_trainer.contract.config import parser
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ExitedError, Outcome, StoppedError, classify, users_traceback
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.data.sources.cached import remove_caches
from tfgpujob_trainer.parameter_server.serve import serve
from tfgpujob_trainer.parameter_server.trainer import trainer_of
from tfgpujob_trainer.predict.predict import predict
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.progress_endpoint import serve as serve_progress
from tfgpujob_trainer.reporting.resize_requests import ResizeRequests
from tfgpujob_trainer.script import folder
from tfgpujob_trainer.script.ending import flush_files, remove_generated_files
from tfgpujob_trainer.script.run import run_script
from tfgpujob_trainer.train.assemble import assemble
from tfgpujob_trainer.train.build import build_model
from tfgpujob_trainer.train.evaluator_replica import follow
from tfgpujob_trainer.train.finish import finish
from tfgpujob_trainer.train.fit import fit_of_module
from tfgpujob_trainer.train.session import open_session

quick_imports.end()
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def main(arguments: Sequence[str]) -> None:
    """Run one task and end the process; TensorFlow's own threads could otherwise still change the exit code."""
    end_with_parent()
    _let_forked_processes_end()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)
    heartbeat = Heartbeat.from_environment()
    heartbeat.beat(phases.STARTING)
    options = parser().parse_args(arguments)
    settings, env = config.load(options.config, options.set), environment.read(os.environ)
    heartbeat.run_status.update(inPlaceRestarts=env.in_place_restarts)
    deadline = CollectiveDeadline(heartbeat.run_status, settings.watchdog.step_seconds)
    if env.traits.has_collectives and env.has_peers:
        deadline.start()
    try:
        outcome = (predict if settings.mode == "predict" else run_task)(settings, env, heartbeat)
    except BaseException as error:  # noqa: BLE001 (every end is mapped)
        outcome = classify(error, has_peers=env.has_peers)
        if outcome.cause in ("Exception", "LimitReached") and not isinstance(error, ExitedError):
            print(users_traceback(error), end="", file=sys.stderr)
        # Inside the handler, while the exception keeps the variables: deleting one would call a parameter server that
        # may be lost.
        end(outcome, heartbeat, deadline)
    end(outcome, heartbeat, deadline)


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _let_forked_processes_end() -> None:
    """Processes that a script forks, such as a multiprocessing.Pool, end by SIGTERM, and with this process.

    Linux takes the thread that forks for the parent, so that only the main thread's children can end with it.
    """
    masks: dict[int, set[int]] = {}

    def before() -> None:  # a signal must not reach the child while it has this process's handler
        masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def in_both() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks[threading.get_ident()])

    def in_child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if threading.get_ident() == main_thread:
            end_with_parent()
        in_both()

    main_thread = threading.get_ident()
    os.register_at_fork(before=before, after_in_parent=in_both, after_in_child=in_child)


def end(outcome: Outcome, heartbeat: Heartbeat, deadline: CollectiveDeadline) -> NoReturn:
    """Report the end, and exit."""
    heartbeat.ended(outcome)
    flush_files()
    remove_generated_files()
    remove_caches()
    sys.stdout.flush()
    sys.stderr.flush()
    deadline.leave_after_the_stalled()
    os._exit(int(outcome.code))


def run_task(settings: TrainerConfig, env: Environment, heartbeat: Heartbeat) -> Outcome:
    """Train, evaluate and export, or follow a training run as its evaluator; returns how it ended."""
    leave_threads_for_reading(settings.data.parallel_reads)
    path = script.find(settings, env)
    is_divided = script.divides(path, settings)
    devices = prepare(settings, env, as_mesh=is_divided)
    if env.serves and (path is None or env.role == "ps"):
        serve(settings, env, heartbeat)
    module = None if path is not None else entrypoint.load(settings.entrypoint, settings.params, env.code_directory)
    heartbeat.spent(goodput.IMPORTING, mark=goodput.IMPORTED)
    if env.progress_port:
        port, token = env.progress_port, env.progress_token
        resizes = ResizeRequests.from_environment()
        serve_progress(heartbeat.run_status, port, in_pod=env.in_pod, token=token, resizes=resizes)
    if path is not None:
        env = folder.enter(settings, env)
        path = env.code_directory / settings.entrypoint
    # A worker under ParameterServer runs a script up to its fit(), for the rows of that. A mesh is no strategy.
    session = open_session(settings, env, heartbeat, devices, builds=not (env.serves or is_divided))
    session.stop.listen()
    heartbeat.stoppable()
    if is_divided:
        return _divided()(path, module, session)
    if module is None:
        assert path is not None
        return run_script(path, session)
    trainer = trainer_of(settings, session)
    with session.strategy.scope():
        built = build_model(fit_of_module(settings, module, env, heartbeat), session, trainer)
        evaluate = trainer.evaluator(built)
        if env.is_evaluator:
            return follow(built, evaluate)
        run = assemble(built, evaluate)
    try:
        position, more = trainer.train(run)
        summary = finish(run, position, more)
        done = f"done after {counted(position.step, 'step')}"
        outcome = Outcome(code=ExitCode.DONE, cause="Completed", message=done, summary=summary)
    except StoppedError as error:
        outcome = error.outcome()
    # All work is done. A worker that exits at once may abort the others before they have reported it.
    heartbeat.ended(outcome)
    with contextlib.suppress(tf.errors.OpError):
        run.peers.count(True)
    return outcome


def _divided() -> Callable[..., Outcome]:
    """run_divided. Imported here, because DTensor takes time to import, and few jobs need it."""
    from tfgpujob_trainer.script.divided import run_divided  # noqa: PLC0415

    return run_divided


if __name__ == "__main__":
    main(sys.argv[1:])
