"""Runs a plain script as __main__ on every worker, inside the strategy's scope, with Keras' own training replaced."""

from __future__ import annotations

import argparse
import ast
import json
import os
import runpy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from traceback import walk_tb
from typing import Any
from unittest import mock

import keras
import tensorflow as tf
from keras.src.distribution.distribution_lib import Distribution
from keras.src.saving import saving_api
from tensorflow.python.distribute.distribute_lib import get_update_replica_id
from tensorflow.python.distribute.values import DistributedVariable

from tfgpujob_contract import phases
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.trainer_config import TrainerConfig, to_json
from tfgpujob_trainer.checkpoints.completed import CompletionMark
from tfgpujob_trainer.cluster.strategy import class_name
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError, ExitedError, Outcome, StoppedError, users_place
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.script import folder
from tfgpujob_trainer.script.calls import calls
from tfgpujob_trainer.script.causes import with_cause
from tfgpujob_trainer.script.device_settings import device_settings
from tfgpujob_trainer.script.ending import AtExit, leaving_as_exiting, stopping_as_the_job
from tfgpujob_trainer.script.job_end import JobEnd, JobEndError
from tfgpujob_trainer.script.place import place_in
from tfgpujob_trainer.script.saving import places_of, saving, shared_folders
from tfgpujob_trainer.script.scope import (
    JobScope,
    gradients_applied_outside,
    saved_models_loaded_outside,
    sessions_cleared_outside,
)
from tfgpujob_trainer.script.takeover import FollowedError, Takeover
from tfgpujob_trainer.train.session import Session

STRATEGIES = tuple(
    (module, f"{kind}Strategy")
    for module in (tf.distribute, tf.distribute.experimental)
    for kind in ("OneDevice", "Mirrored", "CentralStorage", "MultiWorkerMirrored", "ParameterServer")
    if hasattr(module, f"{kind}Strategy")
)
"""Those that a script may ask for, by their modules: it gets the job's."""
_HERE = "localhost:2222"
_RELATIVE = "attempted relative import with no known parent package"
_ONE_WORKER = json.dumps({"cluster": {"worker": [_HERE]}, "task": {"type": "worker", "index": 0}})


def run_script(path: Path, session: Session) -> Outcome:
    """Run the script to its end; returns how it ended. Exceptions of the script pass through."""
    job, env = session.job, session.env
    say(f"{path.name} runs unchanged {_where(env)}; the trainer runs its fit(), evaluate() and predict()")
    try:
        outcome = run_with(Takeover(path, session), path, session)
        if outcome.code == ExitCode.DONE:
            folder.copy_to_store(job, env)
        return outcome
    finally:
        folder.say_what_is_left(job, env)


def run_with(takeover: Takeover, path: Path, session: Session) -> Outcome:
    """The same with fit(), evaluate() and predict() of this takeover."""
    scope, end = JobScope(session.strategy), JobEnd(has_peers=session.env.has_peers)
    with scope:
        ended = run_program(path, session.job, replacements(path, takeover, scope, session, end), end)
    if ended is not None:
        return ended
    takeover.agree("has ended its script")
    if not takeover.calls:
        raise end.in_a_thread or ConfigError(
            f"{path.name} has run, and called no fit(), evaluate() or predict() of a Keras model",
            "call it when the script is run, or remove spec.trainer to run the script as your own program",
        )
    if takeover.fits and session.env.is_chief:
        CompletionMark(Path(session.job.output.directory)).write(to_json(session.job), takeover.summary)
    fits = f" with {counted(takeover.fits, 'fit()', 'calls of fit()')}" if takeover.fits else ""
    return Outcome(code=ExitCode.DONE, cause="Completed", message=f"done: {path.name}{fits}", summary=takeover.summary)


def run_program(path: Path, settings: TrainerConfig, replaced: Iterable[Any], end: JobEnd) -> Outcome | None:
    """Run the script to its end, with these replacements; returns how it ended if that was before."""
    at_exit = AtExit()
    try:
        with ExitStack() as stack:
            for replacement in replaced:
                stack.enter_context(replacement)
            stack.enter_context(mock.patch.object(sys, "argv", [str(path), *(settings.args or ())]))
            stack.enter_context(mock.patch.object(sys, "path", [str(path.parent), *sys.path]))
            stack.enter_context(at_exit.listening())
            stack.enter_context(leaving_as_exiting())
            stack.enter_context(stopping_as_the_job())
            try:
                try:
                    _run(path)
                finally:  # whatever the script has raised in its place, such as a clean-up that fails
                    end.check()
            finally:
                if not isinstance(end.error, StoppedError | FollowedError):
                    at_exit.call()
    except JobEndError as ended:
        if isinstance(ended.error, StoppedError | FollowedError):
            return ended.error.outcome()
        raise ended.error from None
    return None


def _where(env: Environment) -> str:
    if env.is_evaluator or env.serves:
        return "here up to its first fit()"
    return "and on the workers up to its fit()" if env.is_asynchronous else "on each worker"


def _run(path: Path) -> None:
    try:
        if (module := _module_of(path)) is not None:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as error:
        if error.code in (None, 0):
            return
        if (problem := _said_of_arguments(error)) is not None:
            fix = "give them in trainer.args, or as -- ARG… on the command line"
            raise ConfigError(f"the arguments of {path.name}: {problem}", fix) from error
        raise ExitedError(f"{path.name} ended with sys.exit({error.code}){users_place(error)}") from error
    except ImportError as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        if _RELATIVE not in str(error) or frame.f_code.co_filename != str(path):
            raise
        raise ConfigError(
            f"{path.name} is part of a package, as `python -m` runs it: {error}",
            f"run it in the folder above {path.parent.name}/, with --code . there",
        ) from error
    except Exception as error:
        if (known := with_cause(error)) is not error:
            raise known from error
        raise


def _module_of(path: Path) -> str | None:
    """`net.train`, as `python -m` names it: a file with relative imports, of a package that Python finds."""
    nodes = ast.walk(ast.parse(path.read_bytes(), str(path)))
    if not any(isinstance(node, ast.ImportFrom) and node.level for node in nodes):
        return None
    found = (folder for folder in path.parents[1:] if str(folder) in sys.path)
    return next((".".join(path.relative_to(top).with_suffix("").parts) for top in found), None)


def _said_of_arguments(error: SystemExit) -> str | None:
    """The error of argparse, click, absl or docopt about the arguments: they print it, and then end the program."""
    if _is_a(error, "docopt.DocoptExit"):
        return str(error)
    caught = [error.__context__]
    for frame, _ in walk_tb(error.__traceback__):
        # error(self, message), of argparse or of a parser of the script's own.
        if frame.f_code.co_name == "error" and isinstance(frame.f_locals.get("self"), argparse.ArgumentParser):
            return str(frame.f_locals[frame.f_code.co_varnames[1]])
        # click 8.5 ends the program when it has left the place where it caught its own exception.
        caught.append(getattr(frame.f_locals.get("report"), "__self__", None))
    for one in caught:
        if _is_a(one, "click.exceptions.UsageError"):
            return str(one.format_message())  # type: ignore[union-attr]
        if _is_a(one, "absl.flags._exceptions.Error"):
            return str(one)
    return None


def _is_a(error: Any, name: str) -> bool:
    """True for an instance of a class of a package that may not be installed."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == name for kind in type(error).__mro__)


def replacements(path: Path, takeover: Takeover, scope: JobScope, session: Session, end: JobEnd) -> Iterator[Any]:
    """Replacements for Keras' and TensorFlow's own functions."""
    env = session.env
    for name, function in calls(takeover).items():
        own = with_place(path, function, getattr(keras.Model, name), scope, session.heartbeat, end=end)
        yield mock.patch.object(keras.Model, name, own)
    for original in (saving_api.save_model, saving_api.save_weights, keras.Model.export):
        own = saving(original, takeover.held, scope, is_chief=env.is_chief)
        for place in places_of(original):
            yield mock.patch.object(place, original.__name__, own)
    yield shared_folders()
    yield sessions_cleared_outside(scope)
    yield saved_models_loaded_outside(scope)
    yield gradients_applied_outside()
    yield from device_settings()
    for module, name in STRATEGIES:
        yield mock.patch.object(module, name, _the_jobs(name, getattr(module, name), scope.strategy))
    yield mock.patch.object(Distribution, "__init__", _hidden)
    found = os.environ.get("TF_CONFIG")  # scripts read from it how many workers there are
    if not found:
        yield mock.patch.dict(os.environ, TF_CONFIG=_ONE_WORKER)
    elif env.serves and env.role == "worker":
        yield mock.patch.dict(os.environ, TF_CONFIG=as_the_chief(found))
    # float(model.optimizer.learning_rate): a variable of one device can do it, one of several lacks it.
    for name, number in (("__float__", float), ("__int__", int)):
        yield mock.patch.object(DistributedVariable, name, lambda v, to=number: to(v.numpy()), create=True)
    # tape.gradient(loss, image): of a variable of several devices, outside of a step, the first one's was read.
    of_replica = DistributedVariable.handle.fget
    yield mock.patch.object(DistributedVariable, "handle", property(lambda v: _handle(v, of_replica)))


def _handle(variable: Any, of_replica: Callable[[Any], Any]) -> Any:
    outside = tf.distribute.in_cross_replica_context() and get_update_replica_id() is None
    return variable._primary.handle if outside else of_replica(variable)  # noqa: SLF001 (TensorFlow is pinned)


def as_the_chief(tf_config: str) -> str:
    """A worker's TF_CONFIG under ParameterServer with the chief as its task.

    TensorFlow's guide starts a server where the task is a worker, and builds data and model on the chief alone; here a
    worker needs the data too. It knows of no other workers.
    """
    cluster = json.loads(tf_config)["cluster"]
    listed = {role: list(tasks.values()) if isinstance(tasks, dict) else tasks for role, tasks in cluster.items()}
    return json.dumps({"cluster": {**listed, "chief": [_HERE]}, "task": {"type": "chief", "index": 0}})


def with_place(
    path: Path, function: Callable[..., Any], original: Any, scope: JobScope, heartbeat: Heartbeat, *, end: JobEnd
) -> Callable[..., Any]:
    """`function` with errors that refer to the script and its line. Raises JobEndError for those that end it."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        end.check()
        if threading.current_thread() is not threading.main_thread():
            # Its result may never be read: the rest of the script continues.
            end.in_a_thread = _placed(_in_a_thread(original.__name__), path)
            raise end.in_a_thread
        try:
            with scope.left():
                return function(*args, **kwargs)
        except Exception as error:
            placed = _placed(error, path)
            if end.found(placed):
                raise JobEndError(placed) from error
            raise
        finally:
            if end.error is None:
                heartbeat.beat(phases.SCRIPT)

    return call


def _placed(error: Exception, path: Path) -> Exception:
    at = place_in(path)
    if isinstance(error, ConfigError) and at and at not in str(error):
        return ConfigError(f"{error},{at}", error.fix)
    return error


def _in_a_thread(name: str) -> ConfigError:
    return ConfigError(
        f"{name}() is called in a thread of the script's own",
        "call it in the main thread: all workers must make the same calls in the same order",
    )


def _hidden(distribution: Any, *_: Any, **__: Any) -> None:
    name = type(distribution).__name__
    raise ConfigError(
        f"the script makes a keras.distribution.{name}, and its text does not name it: the model would not be divided",
        f"write keras.distribution.{name} in the script, or in a module beside it that it imports",
    )


def _the_jobs(name: str, original: Any, strategy: tf.distribute.Strategy) -> Any:
    """A class that returns the job's strategy for any arguments, and of which that is an instance."""

    class TheJobs(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

        def __call__(cls, *_: Any, **__: Any) -> tf.distribute.Strategy:
            say(f"{name}() in the script is the job's {class_name(strategy)}")
            return strategy

    return TheJobs(name, (original,), {})
