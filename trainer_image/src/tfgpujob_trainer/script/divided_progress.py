"""What Keras' own fit() of a divided model reports, and when it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from tfgpujob_contract import phases
from tfgpujob_trainer.distribution.processes import agree
from tfgpujob_trainer.distribution.report import describe
from tfgpujob_trainer.own_loop.reporter import Reporter
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.training_log import describe as described
from tfgpujob_trainer.script.callback_state import CallbackState, say_what_is_not_kept
from tfgpujob_trainer.script.callbacks import only_writes
from tfgpujob_trainer.script.divided_checkpoints import DividedCheckpoints, Reached
from tfgpujob_trainer.script.traced import traced


class Followed(keras.callbacks.Callback):
    """Progress, and checkpoints: at the end of each epoch, and every `every_steps`."""

    def __init__(
        self,
        checkpoints: DividedCheckpoints,
        heartbeat: Heartbeat,
        reached: Reached,
        callbacks: Sequence[keras.callbacks.Callback],
        *,
        every_steps: int | None,
    ) -> None:
        """`callbacks`: those that run before this one."""
        super().__init__()
        self._checkpoints, self._heartbeat, self._reached = checkpoints, heartbeat, reached
        self._reporter, self.step = Reporter(heartbeat.run_status), reached.step - reached.batches
        self._every_steps, self._first, self._described = every_steps, 0, False
        self._saved = reached.step
        self._batches, self._logs = 0, dict[str, float]()
        self._callbacks, self._state = callbacks, CallbackState(())

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """The others have reset themselves."""
        self._state = CallbackState(self._callbacks)
        say_what_is_not_kept((one for one in self._callbacks if not only_writes(one)), keeps_variables=False)
        if self._reached.step:
            self._state.restore(self._reached.callbacks)
            for one, values in zip(traced(self.model), self._reached.callbacks.get("traced", ()), strict=False):
                one.resumed(self.model, values)

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
            values = [keras.ops.convert_to_numpy(variable) for variable in self.model.metrics_variables]
            self._checkpoints.save(
                replace(
                    self._reached,
                    step=self.step,
                    batches=self._batches,
                    logs=self._logs,
                    metrics=values,
                    callbacks=self._of_callbacks(),
                )
            )
            self._saved = self.step

    def _of_callbacks(self) -> dict[str, Any]:
        """What the first process writes; it may be as large as the model."""
        values = [one.state(self.model) for one in traced(self.model)]
        return {**self._state.changed(), "traced": values} if self._checkpoints.is_first else {}

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
        reached.callbacks, reached.done = self._of_callbacks(), bool(self.model.stop_training)
        reached.epochs.append(epoch)
        for name, value in (logs or {}).items():
            reached.history.setdefault(name, []).append(value)
        say(f"epoch {epoch + 1}/{self.params['epochs']}: {described(logs or {})}")
        self._checkpoints.save(reached)
