"""A script with keras.distribution: Keras' own fit(), on a model that is sharded over the devices of all workers.

Each fit() has checkpoints of the trainer's form, from which it continues.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
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
from tfgpujob_contract.trainer_config import TrainerConfig, to_json
from tfgpujob_trainer.checkpoints.completed import CompletionMark
from tfgpujob_trainer.cluster.strategy import listening
from tfgpujob_trainer.contract.config import is_divided
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError, Outcome, StoppedError
from tfgpujob_trainer.contract.script import is_divided as names_distribution
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.distribution import automatic
from tfgpujob_trainer.distribution.install import installed
from tfgpujob_trainer.distribution.processes import agree, greatest
from tfgpujob_trainer.distribution.report import describe
from tfgpujob_trainer.distribution.steps import read_again
from tfgpujob_trainer.own_loop.reporter import Reporter
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.numbers import one_number
from tfgpujob_trainer.reporting.training_log import describe as described
from tfgpujob_trainer.script.callbacks import listed, only_writes
from tfgpujob_trainer.script.device_settings import device_settings
from tfgpujob_trainer.script.divided_check import build, compare
from tfgpujob_trainer.script.divided_checkpoints import DividedCheckpoints, Reached
from tfgpujob_trainer.script.held import Held
from tfgpujob_trainer.script.job_end import JobEnd
from tfgpujob_trainer.script.run import STRATEGIES, run_program, with_place
from tfgpujob_trainer.script.saving import places_of, saving, shared_folders
from tfgpujob_trainer.script.scope import JobScope
from tfgpujob_trainer.train.exports import model_file, replace_by
from tfgpujob_trainer.train.session import Session


def run_divided(path: Path, session: Session) -> Outcome:
    """Run the script to its end; returns how it ended. A mesh replaces the session's strategy."""
    settings, env, heartbeat, stop = session.job, session.env, session.heartbeat, session.stop
    divided, end = Divided(settings, env, heartbeat), JobEnd(has_peers=env.has_peers)
    say(f"{path.name} runs as it is, with keras.distribution: fit(), evaluate() and predict() are Keras' own")
    with ExitStack() as stack:
        with listening(env.name):
            stack.enter_context(installed(env.peers, env.position, lambda: stop.set))
        if is_divided(settings):
            for replacement in automatic.replacements(shard=settings.shard is not None):
                stack.enter_context(replacement)
        if settings.mesh is not None or (settings.shard is not None and not names_distribution(path)):
            stack.enter_context(automatic.distributed(settings.mesh, settings.layout or {}))
        stop.listen()  # TensorFlow replaces the handler of SIGTERM when processes are connected
        ended = run_program(path, settings, divided.replacements(path, JobScope(session.strategy), end), end)
        if ended is not None:
            return ended
        if not divided.calls:
            raise ConfigError(
                f"{path.name} has run, and called no fit(), evaluate() or predict() of a Keras model",
                "call it when the script is run, or remove spec.trainer to run the script as your own program",
            )
        if divided.fits and env.is_chief:
            CompletionMark(Path(settings.output.directory)).write(to_json(settings), divided.summary)
        done = f"done: {path.name} with {counted(divided.fits, 'fit()', 'calls of fit()')}"
        outcome = Outcome(code=ExitCode.DONE, cause="Completed", message=done, summary=divided.summary)
        if env.has_peers:  # the first that exits aborts the others, which have reported their end by then
            heartbeat.ended(outcome)
            with suppress(tf.errors.OpError):
                greatest([0])
        return outcome


class Divided:
    """What fit(), evaluate() and predict() of the script do in addition to Keras' own."""

    def __init__(self, settings: TrainerConfig, env: Environment, heartbeat: Heartbeat) -> None:
        self._settings, self._env, self._heartbeat = settings, env, heartbeat
        self._compared: WeakSet[keras.Model] = WeakSet()
        self.fits = self.calls = 0
        self.summary: dict[str, Any] = {}

    def replacements(self, path: Path, scope: Any, end: JobEnd) -> Iterator[Any]:
        """Replacements for Keras' and TensorFlow's own functions."""
        for name, function in (("fit", self._fit), ("evaluate", self._watched), ("predict", self._watched)):
            original = getattr(keras.Model, name)
            own = with_place(path, _bound(function, original), original, scope, self._heartbeat, end=end)
            yield mock.patch.object(keras.Model, name, own)
        if self._env.has_peers:
            for original in (saving_api.save_model, saving_api.save_weights):
                saved = saving(original, Held(), scope, is_chief=self._env.is_chief)
                for place in places_of(original):
                    yield mock.patch.object(place, original.__name__, saved)
            yield shared_folders()
        for name in STRATEGIES:
            yield mock.patch.object(getattr(tf.distribute, name), "__init__", _refused_strategy(name))
        yield from device_settings()

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
        followed = _Followed(checkpoints, self._heartbeat, reached, every_steps=self._settings.checkpoint.every_steps)
        read_again(reached.batches, reached.logs, lambda: _restore_metrics(model, reached.metrics))
        callbacks = [*_kept(given.get("callbacks"), is_first=self._env.is_chief), followed]
        try:
            history = original(model, **{**given, "verbose": 0, "initial_epoch": first, "callbacks": callbacks})
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


class _Followed(keras.callbacks.Callback):
    """Progress, and checkpoints: at the end of each epoch, and every `every_steps`."""

    def __init__(
        self, checkpoints: DividedCheckpoints, heartbeat: Heartbeat, reached: Reached, *, every_steps: int | None
    ) -> None:
        super().__init__()
        self._checkpoints, self._heartbeat, self._reached = checkpoints, heartbeat, reached
        self._reporter, self.step = Reporter(heartbeat.run_status), reached.step - reached.batches
        self._every_steps, self._first, self._described = every_steps, 0, False
        self._saved = reached.step
        self._batches, self._logs = 0, dict[str, float]()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Keras may make several steps before it calls the other."""
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report the progress."""
        if not self._described:
            self._described = True
            for line in describe(self.model):
                say(line)
        steps, epochs = self.params["steps"], self.params["epochs"]
        self._batches = min(batch + 1, steps or batch + 1)
        self.step += self._batches - self._first
        self._logs = {name: float(value) for name, value in (logs or {}).items() if np.ndim(value) == 0}
        numbers = dict(self._logs)
        self._heartbeat.beat(phases.TRAINING, self.step)
        self._reporter.report(
            {
                "step": self.step,
                "steps": steps * epochs if steps else None,
                "epoch": self._reached.epoch + 1,
                "epochs": epochs,
            },
            numbers.pop("loss", None),
            None,
            numbers,
        )
        if self._every_steps and self.step - self._saved >= self._every_steps:
            self.save()

    def save(self) -> None:
        """Save within an epoch. Not while it is validated: the metrics are then others'."""
        if self.step > self._saved and self._batches:
            values = [keras.ops.convert_to_numpy(variable).tolist() for variable in self.model.metrics_variables]
            self._checkpoints.save(
                replace(self._reached, step=self.step, batches=self._batches, logs=self._logs, metrics=values)
            )
            self._saved = self.step

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """See save."""
        self._batches = 0

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """A heartbeat."""
        self._heartbeat.beat(phases.EVALUATING, self.step)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save."""
        agree(ends=True)
        reached, self._batches = self._reached, 0
        reached.step, reached.epoch, reached.batches = self.step, epoch + 1, 0
        reached.logs, reached.metrics, self._saved = {}, [], self.step
        reached.epochs.append(epoch)
        for name, value in (logs or {}).items():
            reached.history.setdefault(name, []).append(value)
        say(f"epoch {epoch + 1}/{self.params['epochs']}: {described(logs or {})}")
        self._checkpoints.save(reached)


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
            board.log_dir = tempfile.mkdtemp()  # it gathers weights, in which all take part
    return [one for one in kept if is_first or isinstance(one, keras.callbacks.TensorBoard) or not only_writes(one)]
