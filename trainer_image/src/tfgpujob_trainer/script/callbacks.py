"""The callbacks of a script's fit(): run on every worker with the same numbers, so that all of them act alike.

Their state is part of each checkpoint: numbers, strings, arrays, random generators, and the variables of what they
hold. Anything else is logged when training begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfgpujob_trainer.checkpoints.state import apart
from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.model.optimizers import optimizers_of
from tfgpujob_trainer.model.own_steps import has_own_steps
from tfgpujob_trainer.model.variables import local_value, variables_held
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.script import outside
from tfgpujob_trainer.script.callback_state import CallbackState, say_what_is_not_kept
from tfgpujob_trainer.script.traced import traced
from tfgpujob_trainer.train import csv_logs
from tfgpujob_trainer.train.callbacks import BatchHooks, Hooks

_LEFT_OUT = {
    "BackupAndRestore": "the trainer saves and resumes by itself",
    "TerminateOnNaN": "a loss that is not finite ends the run",
    "ProgbarLogger": "the log has progress lines",
}
_OF_CHIEF = ("TensorBoard", "CSVLogger", "RemoteMonitor")
"""They write, and don't change the training."""
_TRAIN = ("EarlyStopping", "LearningRateScheduler", "ReduceLROnPlateau", "SwapEMAWeights")
"""They change the training: on one worker alone, its weights would differ."""
_TRACKERS = ("aim", "clearml", "comet_ml", "mlflow", "neptune", "wandb")
"""Packages whose callbacks write to a server, on which each run must appear once."""
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_TEST_BATCH_HOOKS = ("on_test_batch_begin", "on_test_batch_end")
_AGREED = ("on_epoch_begin", "on_epoch_end", "on_train_end")
"""Hooks after which all workers agree: one of them may have callbacks that evaluate, and the others not."""


def chosen(callbacks: Any, *, is_chief: bool) -> list[keras.callbacks.Callback]:
    """The callbacks that this worker runs; logs those that are left out. Raises ConfigError for other objects."""
    found = []
    for callback in listed(callbacks):
        if not isinstance(callback, keras.callbacks.Callback):
            fix = "pass a list of keras.callbacks.Callback"
            raise ConfigError(f"fit(callbacks=...) holds a {type(callback).__name__}", fix)
        reason = next((why for name, why in _LEFT_OUT.items() if _is(callback, name)), None)
        if reason is not None:
            say(f"{type(callback).__name__} is left out: {reason}")
        elif is_chief or not only_writes(callback):
            found.append(callback)
    return found


def that_train(callbacks: Any) -> list[str]:
    """The classes of those callbacks that every worker must have, in their order."""
    return [type(one).__name__ for one in listed(callbacks) if any(_is(one, name) for name in _TRAIN)]


def that_may_train(callbacks: Any) -> list[str]:
    """The classes of those that may do more than write, in their order."""
    known = [one for one in listed(callbacks) if not any(_is(one, name) for name in _LEFT_OUT)]
    return [type(one).__name__ for one in known if not only_writes(one)]


def share_logs(callbacks: Any, peers: Peers) -> None:
    """Give every worker the files that CSVLogger wrote on the first one, because its script may read them."""
    loggers = [callback for callback in listed(callbacks) if _is(callback, "CSVLogger")]
    if not peers.count(bool(loggers)):
        return
    there = [Path(one.filename) for one in loggers if peers.is_chief and Path(one.filename).exists()]
    # Each worker may have a folder of its own to work in.
    mine = {str(_from(Path.cwd(), path)): path.read_text() for path in there}
    written: dict[str, str] = json.loads(peers.broadcast_from_chief(json.dumps(mine).encode()))
    for path, text in ((Path(name), text) for name, text in written.items()):
        if not path.exists() or path.read_text() != text:  # else the workers share the folder
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _from(folder: Path, path: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def listed(callbacks: Any) -> list[Any]:
    """The callbacks in the arguments of a call, in any form."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] if callbacks is not None else []


def only_writes(callback: keras.callbacks.Callback) -> bool:
    """True if it writes what it is given, and does not change the training."""
    packages = {base.__module__.split(".")[0] for base in type(callback).__mro__}
    return not packages.isdisjoint(_TRACKERS) or any(_is(callback, name) for name in _OF_CHIEF)


def _is(callback: keras.callbacks.Callback, name: str) -> bool:
    return isinstance(callback, getattr(keras.callbacks, name))


class CallCallbacks(BatchHooks):
    """The callbacks of one evaluate() or predict()."""

    def __init__(
        self, callbacks: Sequence[keras.callbacks.Callback], model: keras.Model, verbose: Any, **more: Any
    ) -> None:
        """`more`: what else Keras' CallbackList is made with."""
        self._model = model
        self._list = keras.callbacks.CallbackList(
            list(callbacks), model=model, verbose=verbose, **{"epochs": 1, **more}
        )
        self.per_test_batch = _have_any(callbacks, _TEST_BATCH_HOOKS)

    def __call__(self, hook: str, *arguments: Any) -> None:
        """Run a hook of all callbacks. Their exceptions pass through."""
        getattr(self._list, hook)(*arguments)

    def logs(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """`as_logs` of the call's model, which is asked for its metrics once: that walks through all layers."""
        return _logs(values, has_loss=self._has_loss)

    @cached_property
    def _has_loss(self) -> bool:
        return _has_loss(self._model)

    def test_batch_begin(self, index: int) -> None:
        """Before each batch of an evaluation."""
        self._list.on_test_batch_begin(index)

    def test_batch_end(self, index: int, values: Mapping[str, Any]) -> None:
        """After each batch."""
        self._list.on_test_batch_end(index, self.logs(values))


class ScriptCallbacks(CallCallbacks, Hooks):
    """Keras' own callback list under the trainer's loop; `model.stop_training` counts after a batch, and an epoch."""

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: keras.Model,
        peers: Peers,
        *,
        agree: Callable[[str], None],
        not_on_all: Collection[str] = (),
        epochs: int,
        steps: int,
        verbose: Any = 0,
        validation_freq: Any = 1,
    ) -> None:
        """`not_on_all`: the classes of which not all workers have as many."""
        super().__init__(callbacks, model, verbose, add_history=True, epochs=epochs, steps=steps)
        self._validated = None if isinstance(validation_freq, int) else frozenset(validation_freq)
        self._peers, self._agree = peers, agree
        self._apart = [one for one in callbacks if only_writes(one) or type(one).__name__ in not_on_all]
        self.per_batch = _have_any(callbacks, _BATCH_HOOKS)
        self._stops_in_epochs = _have_any([one for one in callbacks if not only_writes(one)], _BATCH_HOOKS)
        self.stops = model.stop_training = self._asks = self._ended = False
        on_all = [one for one in callbacks if one not in self._apart]
        named = {f"{type(one).__name__} {i}": one for i, one in enumerate(on_all)}
        self._named, self._known = named, {id(v.value) for v in (*model.variables, *model.metrics_variables)}
        self._known |= {id(v.value) for optimizer in optimizers_of(model).values() for v in optimizer.variables}
        self._outside = {name: outside.used(callback) for name, callback in named.items()}
        self.variables = self._held()
        """Those that the callbacks hold before the training begins, and the model doesn't."""
        self._known |= {id(v.value) for v in self.variables}
        self._state = CallbackState(())
        self._resumed: Mapping[str, Any] = {}
        self._logs: dict[str, Any] | None = None

    def __call__(self, hook: str, *arguments: Any) -> None:
        """Run a hook of all callbacks. Their exceptions pass through."""
        if hook == "on_train_batch_end":  # at a progress line, for callbacks that only observe
            return
        if hook in ("on_epoch_end", "on_test_end"):
            arguments = (*arguments[:-1], self.logs(arguments[-1]))
        if hook == "on_epoch_end":
            self._logs = arguments[1]
        if hook == "on_train_end":
            arguments = (None if self._logs is None else self.logs(self._logs),)
        kept = self._resumed.get("csv", {}) if hook == "on_train_begin" else {}
        begins_again = self._resumed and hook == "on_train_begin"
        # Weights that on_train_begin() sets are older than the checkpoint.
        weights = [(v, local_value(v)) for v in self._model.variables] if begins_again else []
        with csv_logs.continued(self._list.callbacks, kept):
            super().__call__(hook, *arguments)
        for variable, value in weights:
            if not np.array_equal(local_value(variable), value):
                variable.assign(value)
        if hook == "on_train_begin":
            self._state = CallbackState(self._list.callbacks)
            say_what_is_not_kept(self._named.values())
            say_what_is_not_kept((one for one in self._apart if not only_writes(one)), keeps_variables=False)
            self._apply()
        self._agreed(hook, *arguments)

    def _agreed(self, hook: str, *arguments: Any) -> None:
        """What workers agree on after a hook of all callbacks."""
        if hook in _AGREED:
            epoch = f" of epoch {arguments[0] + 1}" if "epoch" in hook else ""
            self._agree(f"has run the callbacks' {hook}(){epoch}")
        if hook == "on_epoch_end":
            # All workers see the same numbers, but a callback may look at a clock.
            self.stops = self._ended or self._peers.count(bool(self._model.stop_training)) > 0
        if hook in ("on_train_begin", "on_epoch_begin"):  # else nothing stops it in an epoch, and workers need not ask
            self._asks = self._peers.count(self._stops_in_epochs or bool(self._model.stop_training)) > 0

    def validates(self, epoch: int) -> bool:
        """Whether the validation rows are evaluated after this epoch."""
        return self._validated is None or epoch in self._validated

    def set_before_step(self) -> bool:
        """Whether Python values that the step read when it was traced have changed before its first batch."""
        return traced(self._model)[0].begins(self._model)

    def batch_begin(self, index: int) -> None:
        """Before each batch of an epoch."""
        self._list.on_train_batch_begin(index)

    def batch_end(self, index: int, values: Mapping[str, Any]) -> None:
        """After each batch."""
        self._list.on_train_batch_end(index, self.logs(values))

    def ends_epoch(self) -> bool:
        """Whether a callback has stopped the training, which ends the epoch as in Keras; the same on every worker."""
        self._ended = self._asks and self._peers.count(bool(self._model.stop_training)) > 0
        return self._ended

    def state(self) -> dict[str, Any]:
        """What has changed in the callbacks since training began."""
        logs = None if self._logs is None else {name: np.asarray(value).tolist() for name, value in self._logs.items()}
        variables = [local_value(variable) for variable in self._held()]
        kept = {"stops": self.stops, "logs": logs, "variables": variables}
        return {**kept, "traced": [one.state(self._model) for one in traced(self._model)], **self._state.changed()}

    def chiefs_state(self) -> dict[str, Any]:
        """Without callbacks that hold arrays."""
        if not self._apart:
            return {}
        state = self._state.changed(self._apart.__contains__)
        return state | {"callbacks": [one for one in state["callbacks"] if not apart(one)[1]]}

    def _held(self) -> list[Any]:
        held = {name: self._outside[name] | vars(callback) for name, callback in self._named.items()}
        return [v for v in variables_held(held) if id(v.value) not in self._known]

    def resumed(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state when training begins: callbacks reset themselves in on_train_begin."""
        self._resumed = state
        for one, values in zip(traced(self._model), state["traced"], strict=True):
            one.resumed(self._model, values)

    def _apply(self) -> None:
        if not self._resumed:
            return
        self.stops, self._logs = self._resumed["stops"], self._resumed["logs"]
        self._state.restore(self._resumed)
        for variable, value in zip(self._held(), self._resumed.get("variables", ()), strict=False):
            variable.assign(value)


def as_logs(model: keras.Model, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values for callbacks, history and the result of evaluate(): as in Keras, in the order of the names.

    Without the loss, if `metrics` of the model is a property of its own that leaves it out.
    """
    return _logs(values, has_loss=_has_loss(model))


def _has_loss(model: keras.Model) -> bool:
    return has_own_steps(model) or any(metric.name == "loss" for metric in model.metrics)


def _logs(values: Mapping[str, Any], *, has_loss: bool) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if has_loss or name not in ("loss", "val_loss")}
    return {name: np.asarray(value) if isinstance(value, list) else value for name, value in sorted(kept.items())}


def _have_any(callbacks: Sequence[keras.callbacks.Callback], hooks: Sequence[str]) -> bool:
    """Whether one of them has one of these hooks, in its class or set on it as LambdaCallback does."""
    base = keras.callbacks.Callback
    return any(n in vars(c) or getattr(type(c), n) is not getattr(base, n) for c in callbacks for n in hooks)
