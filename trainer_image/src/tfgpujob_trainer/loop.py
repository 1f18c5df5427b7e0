"""The training loop: batches in, exact steps, checkpoints, evaluation, and a stop at which all workers agree."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer import heartbeat
from tfgpujob_trainer.config import TrainerConfig
from tfgpujob_trainer.data import Feed, GlobalBatch, Schedule, Source
from tfgpujob_trainer.exits import NotFiniteError, StoppedError
from tfgpujob_trainer.heartbeat import Heartbeat
from tfgpujob_trainer.peers import Peers
from tfgpujob_trainer.progress import Progress, describe, say
from tfgpujob_trainer.resume import Resume
from tfgpujob_trainer.step import Steps, metric_variables


class StopFlag:
    """Set by SIGTERM. The handler must be set after the strategy is built: TensorFlow replaces an earlier one."""

    def __init__(self) -> None:
        self.set = False

    def listen(self) -> None:
        """Handle SIGTERM from now on."""
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.set = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far the run is: the next batch is `index` of `epoch`; `step` optimizer steps are done.

    `loss` is (numerator sum, normaliser sum) of each part of the loss since the epoch began.
    """

    epoch: int = 0
    index: int = 0
    step: int = 0
    examples: int = 0
    loss: tuple[tuple[float, float | None], ...] = ()

    def after(self, batch: GlobalBatch, steps_per_epoch: int) -> Position:
        """The position once `batch` is trained."""
        ended = batch.index + 1 == steps_per_epoch
        return replace(
            self,
            epoch=batch.epoch + 1 if ended else batch.epoch,
            index=0 if ended else batch.index + 1,
            step=self.step + 1,
            examples=self.examples + batch.rows,
        )


@dataclass(kw_only=True)
class Run:
    """Everything that training needs, built once by `task`."""

    config: TrainerConfig
    strategy: tf.distribute.Strategy
    model: keras.Model
    steps: Steps
    data: Source
    schedule: Schedule
    total_steps: int
    first_replica: int
    peers: Peers
    resume: Resume
    heart: Heartbeat
    stop: StopFlag
    progress: Progress
    validation: Source | None = None
    metric_states: list[Any] = field(default_factory=list)
    last_epoch: dict[str, float] = field(default_factory=dict)


def train(run: Run) -> Position:
    """Train from the last checkpoint, or the beginning, to the last step.

    Raises StoppedError after a cooperative stop (saved), NotFiniteError, FencedError.
    """
    position = _restore(run)
    start = (position.epoch, position.index)
    feed = Feed(run.data, run.schedule, run.first_replica, len(run.strategy.extended.worker_devices), start)
    try:
        while position.step < run.total_steps:
            position = _one_step(run, feed, position)
    finally:
        feed.close()
    return position


def _one_step(run: Run, feed: Feed, position: Position) -> Position:
    began, waited = time.monotonic(), feed.waited
    batch = feed.next()
    result = run.steps.train(batch.replicas, tf.constant(run.stop.set))
    stop, not_finite = float(result.stop), result.not_finite.numpy()
    run.progress.add(batch.rows, time.monotonic() - began, feed.waited - waited)
    position = position.after(batch, run.schedule.steps_per_epoch)
    if not_finite.any():
        _not_finite(run, position.step, not_finite)
    position = replace(position, loss=_add_loss(position.loss, result.groups))
    run.heart.beat(heartbeat.TRAINING, position.step)
    run.metric_states = result.metrics
    epoch_ended = position.index == 0
    if stop:
        _save(run, position)
        raise StoppedError(f"stopped by SIGTERM after step {position.step}, saved", "start it again to go on")
    if epoch_ended or run.progress.due or position.step == run.total_steps:
        _report(run, batch, position)
    if _save_due(run, position, epoch_ended=epoch_ended):
        _save(run, position)
    if epoch_ended:
        reset_metrics(run)
        position = replace(position, loss=())
    return position


def _report(run: Run, batch: GlobalBatch, position: Position) -> None:
    loss, metrics = mean_loss(position.loss), metric_results(run.model, run.metric_states)
    epoch = batch.epoch + 1
    run.progress.line(phase=heartbeat.TRAINING, step=position.step, epoch=epoch, loss=loss, metrics=metrics)
    if position.index:
        return
    run.last_epoch = {"loss": loss, **metrics}
    more = ""
    every = run.config.evaluate.every_epochs
    if run.validation is not None and every and epoch % every == 0:
        loss_, metrics_ = evaluate(run, run.validation)
        more = f"; validation {describe(loss_, metrics_)}"
        restore_metrics(run, run.metric_states)
    run.progress.epoch_line(epoch=epoch, loss=loss, metrics=metrics, more=more)


def evaluate(run: Run, data: Source) -> tuple[float, dict[str, float]]:
    """Loss and metrics over all rows of `data`, summed over all workers, no row padded or left out."""
    reset_metrics(run)
    schedule = replace(run.schedule, rows=data.rows, shuffle=False, remainder="carry")
    feed = Feed(data, schedule, run.first_replica, len(run.strategy.extended.worker_devices), (0, 0))
    loss: tuple[tuple[float, float | None], ...] = ()
    try:
        for _ in range(schedule.steps_per_epoch):
            result = run.steps.evaluate(feed.next().replicas, tf.constant(run.stop.set))
            loss = _add_loss(loss, result.groups)
            run.heart.beat(heartbeat.EVALUATING)
    finally:
        feed.close()
    metrics = metric_results(run.model, result.metrics)
    reset_metrics(run)
    return mean_loss(loss), metrics


def _restore(run: Run) -> Position:
    restored = run.resume.restore(run.peers)
    if restored is None:
        return Position()
    state, metric_states = restored
    run.metric_states, run.last_epoch = metric_states, state["lastEpoch"]
    restore_metrics(run, metric_states)
    loss = tuple((numerator, normaliser) for numerator, normaliser in state["loss"])
    position = Position(**{**state["position"], "loss": loss})
    say(f"resuming after step {position.step} (epoch {position.epoch + 1}, batch {position.index})")
    return position


def _save_due(run: Run, position: Position, *, epoch_ended: bool) -> bool:
    settings = run.config.checkpoint
    epochs = settings.epochs_between()
    by_step = settings.every_steps is not None and position.step % settings.every_steps == 0
    by_epoch = epoch_ended and epochs is not None and position.epoch % epochs == 0
    return by_step or by_epoch or position.step == run.total_steps


def _save(run: Run, position: Position) -> None:
    run.heart.beat(heartbeat.SAVING, position.step)
    at_epoch_start = position.index == 0
    state = {
        "position": {
            "epoch": position.epoch,
            "index": position.index,
            "step": position.step,
            "examples": position.examples,
        },
        "loss": [] if at_epoch_start else position.loss,
        "lastEpoch": run.last_epoch,
    }
    metrics = [np.zeros(v.shape) if at_epoch_start else v.numpy() for v in run.metric_states]
    run.resume.save(run.peers, position.step, state, metrics)
    run.heart.beat(heartbeat.TRAINING, position.step)


def _not_finite(run: Run, step: int, flags: np.ndarray) -> None:
    local = len(run.strategy.extended.worker_devices)
    workers = sorted({int(replica) // local for replica in np.flatnonzero(flags)})
    raise NotFiniteError(
        f"the loss of step {step} is NaN or infinite on worker {', '.join(map(str, workers))}",
        "lower the learning rate, clip the gradients, or look for bad values in the data",
    )


def _add_loss(
    total: tuple[tuple[float, float | None], ...], groups: list[Any]
) -> tuple[tuple[float, float | None], ...]:
    numbers = [(float(n), None if d is None else float(d)) for n, d in groups]
    if not total:
        return tuple(numbers)
    return tuple(
        (n0 + n1, None if d0 is None or d1 is None else d0 + d1)
        for (n0, d0), (n1, d1) in zip(total, numbers, strict=True)
    )


def mean_loss(loss: tuple[tuple[float, float | None], ...]) -> float:
    """The sums as one loss, without weight regularisers."""
    return sum(n if d is None else n / d if d else 0.0 for n, d in loss)


def metric_results(model: keras.Model, states: list[Any]) -> dict[str, float]:
    """The model's metrics from state that was summed over all replicas."""
    mapping = list(zip(metric_variables(model), states, strict=True))
    with keras.StatelessScope(state_mapping=mapping):
        results = model.get_metrics_result()
    return {name: float(np.mean(value)) for name, value in results.items() if name != "loss"}


def reset_metrics(run: Run) -> None:
    """Start counting anew on every replica."""
    restore_metrics(run, [np.zeros(v.shape) for v in metric_variables(run.model)])


def restore_metrics(run: Run, states: list[Any]) -> None:
    """Give summed state to the first replica of all and zero to the others, so that their sum is the same."""
    values = [np.asarray(s) for s in states]

    def replica() -> None:
        context = tf.distribute.get_replica_context()
        first = int(tf.get_static_value(context.replica_id_in_sync_group)) == 0
        for variable, value in zip(metric_variables(run.model), values, strict=True):
            variable.assign(tf.cast(value if first else np.zeros_like(value), variable.dtype))

    run.strategy.run(replica)
