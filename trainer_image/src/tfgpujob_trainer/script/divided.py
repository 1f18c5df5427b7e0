"""A script with keras.distribution, or a module with trainer.mesh: Keras' own fit(), on a sharded model.

The mesh has the devices of all workers. Each fit() has checkpoints of the trainer's form, from which it continues.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import WeakSet

import keras
import numpy as np
import tensorflow as tf
from keras.distribution import distribution
from keras.src.saving import saving_api

from tfgpujob_contract import phases
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.python_file import is_divided as names_distribution
from tfgpujob_contract.trainer_config import TrainerConfig, to_json
from tfgpujob_trainer.checkpoints.completed import CompletionMark
from tfgpujob_trainer.cluster.strategy import listening
from tfgpujob_trainer.contract.config import is_divided
from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError, Outcome, StoppedError
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.data.sources import cached
from tfgpujob_trainer.distribution import automatic
from tfgpujob_trainer.distribution.install import installed
from tfgpujob_trainer.distribution.processes import greatest
from tfgpujob_trainer.distribution.steps import read_again
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.numbers import one_number
from tfgpujob_trainer.script.callbacks import listed, only_writes
from tfgpujob_trainer.script.device_settings import device_settings
from tfgpujob_trainer.script.divided_check import build, compare, rows_of
from tfgpujob_trainer.script.divided_checkpoints import DividedCheckpoints
from tfgpujob_trainer.script.divided_module import arguments
from tfgpujob_trainer.script.divided_progress import Followed
from tfgpujob_trainer.script.held import Held
from tfgpujob_trainer.script.job_end import JobEnd
from tfgpujob_trainer.script.run import STRATEGIES, run_program, with_place
from tfgpujob_trainer.script.saving import places_of, saving, shared_folders
from tfgpujob_trainer.script.scope import JobScope
from tfgpujob_trainer.script.traced import remember_trained, trained_as_at_first
from tfgpujob_trainer.train import csv_logs
from tfgpujob_trainer.train.exports import model_file, replace_by
from tfgpujob_trainer.train.session import Session


def run_divided(path: Path | None, module: Entrypoint | None, session: Session) -> Outcome:
    """Run the script to its end, or train the module's model; returns how it ended. A mesh replaces the session's
    strategy.
    """
    settings, env, heartbeat, stop = session.job, session.env, session.heartbeat, session.stop
    divided, end = Divided(settings, env, heartbeat), JobEnd(has_peers=env.has_peers)
    name = settings.entrypoint if path is None else path.name
    say(f"{name} runs with keras.distribution: fit(), evaluate() and predict() are Keras' own")
    with ExitStack() as stack:
        with listening(env.name):
            stack.enter_context(installed(env.peers, env.position, lambda: stop.set))
        if is_divided(settings):
            for replacement in automatic.replacements(shard=settings.shard is not None):
                stack.enter_context(replacement)
        if settings.mesh is not None or (settings.shard is not None and not (path and names_distribution(path))):
            stack.enter_context(automatic.distributed(settings.mesh, settings.layout or {}))
        stop.listen()  # TensorFlow replaces the handler of SIGTERM when processes are connected
        if module is not None:
            ended = divided.train(module)
        else:
            assert path is not None
            ended = run_program(path, settings, divided.replacements(path, JobScope(session.strategy), end), end)
        if ended is not None:
            return ended
        if not divided.calls:
            raise ConfigError(
                f"{name} has run, and called no fit(), evaluate() or predict() of a Keras model",
                "call it when the script is run, or remove spec.trainer to run the script as your own program",
            )
        if divided.fits and env.is_chief:
            CompletionMark(Path(settings.output.directory)).write(to_json(settings), divided.summary)
        done = f"done: {name} with {counted(divided.fits, 'fit()', 'calls of fit()')}"
        outcome = Outcome(code=ExitCode.DONE, cause="Completed", message=done, summary=divided.summary)
        if env.has_peers:  # the first that exits aborts the others, which have reported their end by then
            heartbeat.ended(outcome)
            with suppress(tf.errors.OpError):
                greatest([0])
        return outcome


class Divided:
    """What fit(), evaluate() and predict() do in addition to Keras' own."""

    def __init__(self, settings: TrainerConfig, env: Environment, heartbeat: Heartbeat) -> None:
        self._settings, self._env, self._heartbeat = settings, env, heartbeat
        self._compared: WeakSet[keras.Model] = WeakSet()
        self.fits = self.calls = 0
        self.summary: dict[str, Any] = {}

    def replacements(self, path: Path, scope: Any, end: JobEnd) -> Iterator[Any]:
        """Replacements for Keras' and TensorFlow's own functions."""
        watched = dict.fromkeys(("evaluate", "predict"), self._watched)
        of_batches = dict.fromkeys(("train_on_batch", "test_on_batch", "predict_on_batch"), self._counted)
        for name, function in {"fit": self._fit, **watched, **of_batches}.items():
            original = getattr(keras.Model, name)
            own = with_place(path, _bound(function, original), original, scope, self._heartbeat, end=end)
            yield mock.patch.object(keras.Model, name, own)
        if self._env.has_peers:
            for original in (saving_api.save_model, saving_api.save_weights):
                saved = saving(original, Held(), scope, is_chief=self._env.is_chief)
                for place in places_of(original):
                    yield mock.patch.object(place, original.__name__, saved)
            yield shared_folders()
        for module, name in STRATEGIES:
            yield mock.patch.object(getattr(module, name), "__init__", _refused_strategy(name))
        yield from device_settings()

    def train(self, module: Entrypoint) -> Outcome | None:
        """fit() with what the functions of a module return; how it ended if that was before the test split."""
        model, given, test = arguments(self._settings, module, self._heartbeat)
        try:
            self._fit(keras.Model.fit, model, given)
            if test is not None:
                found = self._watched(keras.Model.evaluate, model, {"x": test, "return_dict": True})
                self.summary["splits"]["test"] = {metric: one_number(value) for metric, value in found.items()}
        except StoppedError as error:
            return error.outcome()
        return None

    def _counted(self, original: Callable[..., Any], model: keras.Model, given: dict[str, Any]) -> Any:
        """A call for one batch, also of a copy on one device."""
        self.calls += distribution() is not None
        return original(model, **given)

    def _watched(self, original: Callable[..., Any], model: keras.Model, given: dict[str, Any]) -> Any:
        """evaluate() or predict(), with a heartbeat at each batch."""
        if isinstance(given.get("callbacks"), keras.callbacks.CallbackList):  # fit() validates
            return original(model, **given)
        self.calls += 1
        _check_distribution()
        return original(model, **{**given, "verbose": 0, "callbacks": [*listed(given.get("callbacks")), self._beats()]})

    def _beats(self) -> keras.callbacks.Callback:
        def beat(*_: Any, **__: Any) -> None:
            self._heartbeat.beat(phases.EVALUATING)

        return keras.callbacks.LambdaCallback(on_test_batch_end=beat, on_predict_batch_end=beat)

    def _fit(self, original: Callable[..., Any], model: keras.Model, given: dict[str, Any]) -> Any:
        self.calls += 1
        self.fits += 1
        _check_distribution()
        output = Path(self._settings.output.directory, *([f"fit-{self.fits}"] if self.fits > 1 else []))
        build(model, given)
        checkpoints = DividedCheckpoints(model, output, self._settings, self._env, self._heartbeat)
        reached, epochs = checkpoints.restore(), given.get("epochs", 1)
        if reached.batches:
            build(model, given, metrics=True)
        is_done = reached.done and reached.planned == epochs
        first = epochs if is_done else max(given.get("initial_epoch") or 0, reached.epoch)
        reached.planned, reached.done = epochs, False
        within = f" and {counted(reached.batches, 'batch', 'batches')}" if reached.batches else ""
        after = f" continues after epoch {first} of {epochs}{within}" if reached.step else ""
        say(f"fit() number {self.fits}{after}")
        if not reached.step and model not in self._compared:
            self._compared.add(model)
            say(compare(model, given))
            if model._compile_config.config.get("jit_compile") is True:  # noqa: SLF001 (Keras is pinned)
                say("jit_compile is left out: XLA can't compile a step of a mesh. Its random numbers would be others")
        callbacks = _kept(given.get("callbacks"), is_first=self._env.is_chief)
        every = self._settings.checkpoint.every_steps
        followed = Followed(checkpoints, self._heartbeat, reached, callbacks, every_steps=every)
        read_again(reached.batches, reached.logs, lambda: _restore_metrics(model, reached.metrics))
        given |= {"verbose": 0, "initial_epoch": first, "callbacks": [*callbacks, followed]}
        try:
            with (
                trained_as_at_first(model, rows_of(given)),
                csv_logs.continued(callbacks, reached.callbacks.get("csv", {})),
            ):
                remember_trained(model)
                history = original(model, **given)
        except StoppedError:
            followed.save()
            raise StoppedError(f"stopped after step {followed.step}, which is saved") from None
        history.epoch, history.history = reached.epochs, reached.history
        reached.done = True
        checkpoints.save(reached)  # callbacks may have put back the best weights
        name = model_file(model)
        self._heartbeat.beat(phases.EXPORTING, reached.step)
        with ExitStack() as stack:
            # All gather what the first one writes.
            here = output if self._env.is_chief else Path(stack.enter_context(tempfile.TemporaryDirectory()))
            replace_by(here / name, model.save if name == "model.keras" else model.save_weights)
        last = {metric: one_number(values[-1]) for metric, values in history.history.items() if values}
        self.summary = {
            "steps": reached.step,
            "epochs": reached.epoch,
            "splits": {"train": last},
            "model": str(output / name),
        }
        say(f"trained {counted(reached.step, 'step')}; model {self.summary['model']}")
        return history


def _refused_strategy(name: str) -> Callable[..., Any]:
    def strategy(*_: Any, **__: Any) -> Any:
        raise ConfigError(
            f"the script makes a {name}, and its model is divided over a mesh",
            "leave the strategy out: the mesh has all devices of the job",
        )

    return strategy


def _restore_metrics(model: keras.Model, values: list[Any]) -> None:
    if len(values) != len(model.metrics_variables):
        say("the metrics of this epoch are those of the batches that follow: they were not built yet")
        return
    for variable, value in zip(model.metrics_variables, values, strict=True):
        variable.assign(np.asarray(value))


def _bound(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of Keras' own, the model, and every argument by its name."""
    signature = inspect.signature(original)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(*args, **kwargs).arguments)
        given |= given.pop("kwargs", {})
        return function(original, given.pop("self"), given)

    return call


def _check_distribution() -> None:
    if distribution() is None:
        raise ConfigError(
            "the script names keras.distribution, and no distribution is set",
            "call keras.distribution.set_distribution(...) before the model is made, or leave keras.distribution out",
        )


def _kept(callbacks: Any, *, is_first: bool) -> list[Any]:
    """The callbacks without the one that would resume in another way, and without logs of another process."""
    found = listed(callbacks)
    kept = [one for one in found if not isinstance(one, keras.callbacks.BackupAndRestore)]
    if len(kept) < len(found):
        say("BackupAndRestore is left out: the trainer saves and resumes by itself")
    for board in kept:
        if isinstance(board, keras.callbacks.TensorBoard) and not is_first:
            board.log_dir = cached.new_place()  # it gathers weights, in which all take part
    return [one for one in kept if is_first or isinstance(one, keras.callbacks.TensorBoard) or not only_writes(one)]
