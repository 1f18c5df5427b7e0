"""The synchronous training loop: a global batch, an exact step, and a stop that all workers agree on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import keras
import numpy as np

from tfgpujob_contract import goodput, phases
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.contract.exits import NotFiniteError
from tfgpujob_trainer.data.feed import Feed
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover
from tfgpujob_trainer.model.own_steps import has_own_steps
from tfgpujob_trainer.model.replica_seeds import draw_per_replica
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.timing import StepTime
from tfgpujob_trainer.step.own_step import OwnSteps
from tfgpujob_trainer.step.synchronous import SynchronousSteps
from tfgpujob_trainer.step.trial import ROWS
from tfgpujob_trainer.train.built_model import Built, SynchronizedSteps
from tfgpujob_trainer.train.evaluation import Evaluator
from tfgpujob_trainer.train.run import (
    Position,
    Run,
    after_step,
    begin_training,
    end_training,
    next_epoch,
    restore,
    values_so_far,
    wait_for_save,
)
from tfgpujob_trainer.train.session import Session

_MAX_SKIPPED = 50
"""Overflows in a row after which no loss scale helps: 2**15 halved that often is nearly zero."""


class SynchronousTrainer:
    """All replicas take each step together, with one all-reduce an optimizer step."""

    def __init__(self, settings: TrainerConfig, session: Session) -> None:
        self._settings, self._session = settings, session

    def data_policy(self, data: Source) -> str:
        """By the source."""
        return data.policy

    def build_steps(
        self, model: keras.Model, takeover: OptimizerTakeover, data: Source, schedule: Schedule
    ) -> SynchronizedSteps:
        """Steps with the exact gradient of the global batch."""
        draw_per_replica(model, self._session.strategy)
        if has_own_steps(model):
            return self._own_steps(model, data, schedule)
        steps = SynchronousSteps(
            self._session.strategy,
            model,
            takeover,
            data.example(),
            rows=schedule.rows_per_replica if data.even_batches else None,
            jit=self._settings.jit,
            half=self._settings.all_reduce == "float16",
            class_weights=self._settings.class_weights,
            allow_coupled_loss=bool(self._settings.allow_coupled_loss),
        )
        self._session.heartbeat.run_status.waits_for_peers = steps.waits_for_peers
        steps.notes += steps.check_metrics(data.head(ROWS))
        steps.try_on(data.places(ROWS))
        return steps

    def _own_steps(self, model: keras.Model, data: Source, schedule: Schedule) -> OwnSteps:
        steps = OwnSteps(
            self._session.strategy,
            model,
            data.example(),
            name=self._session.name,
            rows=schedule.rows_per_replica if data.even_batches else None,
            class_weights=self._settings.class_weights,
        )
        self._session.heartbeat.run_status.waits_for_peers = steps.waits_for_peers
        several = self._session.replicas > 1
        steps.try_on(data.places(ROWS) if several else [data.head(schedule.global_batch_size)])
        return steps

    def evaluator(self, built: Built[SynchronizedSteps]) -> Evaluator:
        """Evaluation with the replicas and the batch size of the training."""
        return Evaluator(built.session, built.steps, built.schedule)

    def train(self, run: Run[SynchronizedSteps]) -> tuple[Position, dict[str, Any]]:
        """Train to the last step. The summary gets nothing from this trainer."""
        return train(run), {}


def train(run: Run[SynchronizedSteps]) -> Position:
    """Train from the last checkpoint, or the beginning, to the last step.

    Raises StoppedError after a cooperative stop (saved), NotFiniteError, FencedError.
    """
    position, steps = restore(run), run.built.steps
    start = (position.epoch, position.index)
    feed = Feed(
        run.built.data,
        run.built.schedule,
        run.built.session.first_replica,
        run.built.session.local_replicas,
        start,
        parallel_reads=run.config.data.parallel_reads,
    )
    try:
        begin_training(run, position)
        if run.metric_states:
            steps.metric_states.restore(run.metric_states)
        # Before, the steps were tried with the values of a new model, and not with those of the checkpoint.
        _try_again(run, position, due=position.step > run.first.step)
        while not run.done(position):
            position = _one_step(run, feed, position)
        wait_for_save(run, position)
        end_training(run)
    except BaseException:
        # A checkpoint of a step before the error is valid, and may take as long as any save.
        run.heartbeat.beat(phases.SAVING)
        with contextlib.suppress(Exception):
            run.checkpoints.wait()
        raise
    finally:
        feed.close()
        run.profiler.close()
        run.log.close()
    return position


def _one_step(run: Run[SynchronizedSteps], feed: Feed, position: Position) -> Position:
    run.profiler.before(position.step + 1)
    began, waited = time.monotonic(), feed.waited
    batch = feed.next()
    if run.callbacks.per_batch:
        position = _after_hook(run, position, run.callbacks.batch_begin, batch.index)
    steps, own_seconds = run.built.steps, run.log.workers.own
    if not run.has_trained:
        run.has_trained = True
        _try_again(run, position, trace=run.callbacks.set_before_step())
    result = steps.train(
        batch.replicas,
        stop=run.stop.set,
        edges=batch.edges,
        own_seconds=own_seconds,
        hold=not run.checkpoints.in_memory_may_follow_step(),
        whole=batch.rows == run.config.global_batch_size,
    )
    spent = StepTime(time.monotonic() - began, feed.waited - waited, result.all_reduce_seconds)
    run.log.add(batch.rows, spent, result.own_seconds)
    run.heartbeat.ledger.aside(goodput.INPUT, spent.waited)
    run.heartbeat.ledger.aside(goodput.ALL_REDUCE, result.all_reduce_seconds if run.log.workers.several else 0.0)
    position = position.after(batch, run.built.schedule.steps_per_epoch)
    if result.applied:
        if any(result.not_finite):
            _not_finite(run, position.step, result.not_finite)
        run.skipped = 0
        position = replace(position, loss=steps.add_loss(position.loss, result.loss, batch.rows))
    else:
        _skipped(run, position.step)
    run.heartbeat.beat(phases.TRAINING, position.step)
    run.metric_states = result.metrics
    if run.callbacks.per_batch:
        position = _after_hook(run, position, run.callbacks.batch_end, batch.index, values_so_far(run, position))
    if position.index and run.callbacks.ends_epoch():
        position = replace(position, epoch=batch.epoch + 1, index=0)
    evaluated = after_step(run, batch, position, stop=result.stop, copy=not result.held)
    if position.index == 0:
        _end_metrics(run, position, evaluated=evaluated)
        position = next_epoch(run, position)
        # What follows from a counter is no change: it is looked for after epochs 1, 2, 4, 8 and so on.
        epochs = position.epoch - run.first.epoch
        _try_again(run, position, due=epochs & (epochs - 1) == 0)
        return position
    if evaluated:  # it has used the metrics, and the epoch continues
        steps.metric_states.restore(run.metric_states)
    return position


def _try_again(run: Run[SynchronizedSteps], position: Position, *, due: bool = False, trace: bool = False) -> None:
    """Try the steps with the current values, if that is due or what they read has changed.

    `trace`: callbacks have changed Python values that the first step reads, and Keras traces it only now. All workers
    find the same, but for what a callback may have changed on one of them alone.
    """
    steps = run.built.steps
    if run.done(position):
        return
    trace = run.peers.count(trace) > 0
    if trace or run.peers.count(steps.has_changed() or due):
        with run.built.session.strategy.scope():
            for note in steps.try_again(trace=trace):
                say(note)


def _after_hook(
    run: Run[SynchronizedSteps], position: Position, hook: Callable[..., None], *arguments: Any
) -> Position:
    """The position after a batch's hook, in which a script may reset the metrics: Keras' loss is one of them."""
    tracker = run.built.model._loss_tracker  # noqa: SLF001
    if tracker is None:
        hook(*arguments)
        return position
    with mock.patch.object(tracker, "reset_state", wraps=tracker.reset_state) as reset:
        hook(*arguments)
    if not reset.called:
        return position
    run.metric_states = [np.zeros(v.shape) for v in run.built.model.metrics_variables]
    return replace(position, loss=())


def _end_metrics(run: Run[SynchronizedSteps], position: Position, *, evaluated: bool) -> None:
    """Begin the next epoch at zero; after the last one a script may ask its metrics for what they have counted."""
    states = run.built.steps.metric_states
    if not run.done(position):
        states.reset()
    elif not evaluated:
        states.leave(run.metric_states)


def _skipped(run: Run[SynchronizedSteps], step: int) -> None:
    """An overflow: normal while the loss scale adapts, an error if it continues."""
    run.skipped += 1
    run.skipped_in_all += 1
    if run.skipped >= _MAX_SKIPPED:
        raise NotFiniteError(
            f"the gradients of {run.skipped} steps in a row overflowed, up to step {step}",
            "lower the learning rate, or use precision mixed_bfloat16",
        )


def _not_finite(run: Run[SynchronizedSteps], step: int, flags: Sequence[float]) -> None:
    local = run.built.session.local_replicas
    workers = sorted({int(replica) // local for replica in np.flatnonzero(flags)})
    raise NotFiniteError.of_step(step, f" on worker {', '.join(map(str, workers))}")
