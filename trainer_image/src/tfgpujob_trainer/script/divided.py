"""A script with keras.distribution: Keras' own fit(), on a model that is sharded over the devices of this worker.

Each fit() has checkpoints of the trainer's form, written at the end of each epoch, from which it continues.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import WeakSet

import keras
import numpy as np
from keras.distribution import distribution

from tfgpujob_trainer.checkpoints.completed import CompletionMark
from tfgpujob_trainer.cluster.stop import StopFlag
from tfgpujob_trainer.contract.config import to_json
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError, ExitCode, Outcome, StoppedError
from tfgpujob_trainer.contract.spec import TrainerConfig
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.distribution.install import installed
from tfgpujob_trainer.distribution.report import describe
from tfgpujob_trainer.own_loop.reporter import Reporter
from tfgpujob_trainer.reporting import phases
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.numbers import one_number
from tfgpujob_trainer.reporting.training_log import describe as described
from tfgpujob_trainer.script.callbacks import listed
from tfgpujob_trainer.script.device_settings import device_settings
from tfgpujob_trainer.script.divided_check import build, compare
from tfgpujob_trainer.script.divided_checkpoints import DividedCheckpoints, Reached
from tfgpujob_trainer.script.job_end import JobEnd
from tfgpujob_trainer.script.run import run_program, with_place
from tfgpujob_trainer.script.scope import JobScope
from tfgpujob_trainer.train.exports import model_file, replace_by
from tfgpujob_trainer.train.session import Session


def run_divided(path: Path, session: Session) -> Outcome:
    """Run the script to its end; returns how it ended. A mesh replaces the session's strategy."""
    settings, end = session.job, JobEnd(has_peers=False)
    divided = Divided(settings, session.env, session.heartbeat, session.stop)
    say(f"{path.name} runs as it is, with keras.distribution: fit(), evaluate() and predict() are Keras' own")
    with installed():
        ended = run_program(path, settings, divided.replacements(path, JobScope(session.strategy), end), end)
    if ended is not None:
        return ended
    if not divided.calls:
        raise ConfigError(
            f"{path.name} has run, and called no fit(), evaluate() or predict() of a Keras model",
            "call it when the script is run, or remove spec.trainer to run the script as your own program",
        )
    if divided.fits:
        CompletionMark(Path(settings.output.directory)).write(to_json(settings), divided.summary)
    done = f"done: {path.name} with {counted(divided.fits, 'fit()', 'calls of fit()')}"
    return Outcome(code=ExitCode.DONE, cause="Completed", message=done, summary=divided.summary)


class Divided:
    """What fit(), evaluate() and predict() of the script do in addition to Keras' own."""

    def __init__(self, settings: TrainerConfig, env: Environment, heartbeat: Heartbeat, stop: StopFlag) -> None:
        self._settings, self._env, self._heartbeat, self._stop = settings, env, heartbeat, stop
        self._compared: WeakSet[keras.Model] = WeakSet()
        self.fits = self.calls = 0
        self.summary: dict[str, Any] = {}

    def replacements(self, path: Path, scope: Any, end: JobEnd) -> Iterator[Any]:
        """Replacements for Keras' and TensorFlow's own functions."""
        for name, function in (("fit", self._fit), ("evaluate", self._watched), ("predict", self._watched)):
            original = getattr(keras.Model, name)
            own = with_place(path, _bound(function, original), original, scope, self._heartbeat, end=end)
            yield mock.patch.object(keras.Model, name, own)
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
            if self._stop.set:
                raise StoppedError("stopped outside of fit(); what was trained is saved")

        return keras.callbacks.LambdaCallback(on_test_batch_end=beat, on_predict_batch_end=beat)

    def _fit(self, original: Callable[..., Any], model: keras.Model, given: dict[str, Any]) -> Any:
        self.calls += 1
        self.fits += 1
        _check_distribution()
        output = Path(self._settings.output.directory, *([f"fit-{self.fits}"] if self.fits > 1 else []))
        build(model, given)
        checkpoints = DividedCheckpoints(model, output, self._settings, self._env, self._heartbeat)
        reached, epochs = checkpoints.restore(), given.get("epochs", 1)
        is_done = reached.done and reached.planned == epochs
        first = epochs if is_done else max(given.get("initial_epoch") or 0, reached.epoch)
        reached.planned, reached.done = epochs, False
        say(f"fit() number {self.fits}" + (f" continues after epoch {first} of {epochs}" if reached.step else ""))
        if not reached.step and model not in self._compared:
            self._compared.add(model)
            say(compare(model, given))
        followed = _Followed(checkpoints, self._heartbeat, self._stop, reached)
        callbacks = [*_kept(given.get("callbacks")), followed]
        history = original(model, **{**given, "verbose": 0, "initial_epoch": first, "callbacks": callbacks})
        history.epoch, history.history = reached.epochs, reached.history
        reached.done = True
        checkpoints.save(reached)  # callbacks may have put back the best weights
        name = model_file(model)
        self._heartbeat.beat(phases.EXPORTING, reached.step)
        replace_by(output / name, model.save if name == "model.keras" else model.save_weights)
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
    """Progress, the request to stop, and a checkpoint at the end of each epoch."""

    def __init__(self, checkpoints: DividedCheckpoints, heartbeat: Heartbeat, stop: StopFlag, reached: Reached) -> None:
        super().__init__()
        self._checkpoints, self._heartbeat, self._stop, self._reached = checkpoints, heartbeat, stop, reached
        self._reporter, self._step = Reporter(heartbeat.run_status), reached.step
        self._first, self._described = 0, False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Keras may make several steps before it calls the other."""
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report the progress, and stop if requested."""
        if not self._described:
            self._described = True
            for line in describe(self.model):
                say(line)
        steps, epochs = self.params["steps"], self.params["epochs"]
        self._step += min(batch + 1, steps or batch + 1) - self._first
        numbers = {name: value for name, value in (logs or {}).items() if np.ndim(value) == 0}
        self._heartbeat.beat(phases.TRAINING, self._step)
        self._reporter.report(
            {
                "step": self._step,
                "steps": steps * epochs if steps else None,
                "epoch": self._reached.epoch + 1,
                "epochs": epochs,
            },
            numbers.pop("loss", None),
            None,
            numbers,
        )
        if self._stop.set:
            after = f"epoch {self._reached.epoch}" if self._reached.epoch else "nothing: no epoch was finished"
            raise StoppedError(f"stopped after step {self._step}; the run is continued after {after}")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """A heartbeat."""
        self._heartbeat.beat(phases.EVALUATING, self._step)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save."""
        reached = self._reached
        reached.step, reached.epoch = self._step, epoch + 1
        reached.epochs.append(epoch)
        for name, value in (logs or {}).items():
            reached.history.setdefault(name, []).append(value)
        say(f"epoch {epoch + 1}/{self.params['epochs']}: {described(logs or {})}")
        self._checkpoints.save(reached)


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


def _kept(callbacks: Any) -> list[Any]:
    """The callbacks without the one that would resume in another way."""
    found = listed(callbacks)
    kept = [one for one in found if not isinstance(one, keras.callbacks.BackupAndRestore)]
    if len(kept) < len(found):
        say("BackupAndRestore is left out: the trainer saves and resumes by itself")
    return kept
