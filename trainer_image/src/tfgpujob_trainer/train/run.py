"""A run, and what every strategy does between steps: report, evaluate, checkpoint, restore."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic

import numpy as np

from tfgpujob_contract import goodput, phases
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.checkpoints.manager import CheckpointManager
from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.cluster.stop import StopFlag
from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.exits import StoppedError
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.data.feed import GlobalBatch
from tfgpujob_trainer.model import metrics
from tfgpujob_trainer.model.loss import LossSums
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.profiler import Profiler
from tfgpujob_trainer.reporting.training_log import TrainingLog, describe
from tfgpujob_trainer.train.best import Best
from tfgpujob_trainer.train.built_model import Built, S_co, Steps
from tfgpujob_trainer.train.callbacks import Hooks
from tfgpujob_trainer.train.equal_weights import agree_on_weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """The progress of the run: the next batch is `index` of `epoch`; `step` optimizer steps are done.

    `loss` is (numerator sum, normaliser sum) of each part of the loss since the epoch began.
    """

    epoch: int = 0
    index: int = 0
    step: int = 0
    examples: int = 0
    loss: LossSums = ()

    def after(self, batch: GlobalBatch, steps_per_epoch: int) -> Position:
        """The position after `batch` is trained."""
        ended = batch.index + 1 == steps_per_epoch
        return replace(
            self,
            epoch=batch.epoch + 1 if ended else batch.epoch,
            index=0 if ended else batch.index + 1,
            step=self.step + 1,
            examples=self.examples + batch.rows,
        )


@dataclass(kw_only=True)
class Run(Generic[S_co]):
    """One training run: model, data, checkpoints and reports, and what changes from step to step."""

    config: TrainerConfig
    built: Built[S_co]
    total_steps: int
    evaluate: Callable[..., dict[str, Any]]
    peers: Peers
    checkpoints: CheckpointManager
    best: Best
    callbacks: Hooks
    heartbeat: Heartbeat
    stop: StopFlag
    log: TrainingLog
    profiler: Profiler
    metric_states: list[Any] = field(default_factory=list)
    last_epoch: dict[str, Any] = field(default_factory=dict)
    evaluation_pending: bool = False
    has_trained: bool = False
    skipped: int = 0
    skipped_in_all: int = 0
    first: Position = field(default_factory=Position)
    """The start position of a run without a checkpoint."""
    planned_saves: int = 0
    """Number of saves of this process, except those due by time."""
    saved_at: float = 0.0
    """When this process saved last, or began to train."""
    chiefs_state: dict[str, Any] = field(default_factory=dict)
    """The state of the callbacks that only the chief has, after its last epoch."""

    def done(self, position: Position) -> bool:
        """True after the last step: the configured one, or because there is no more improvement."""
        return position.step >= self.total_steps or self.best.stops_early or self.callbacks.stops


def begin_training(run: Run[Steps], position: Position) -> None:
    """Call the callbacks' hooks for the start of training, and repeat an evaluation that a stop left out."""
    run.callbacks("on_train_begin")
    if run.peers.workers > 1:
        _share_chiefs_state(run)
    run.saved_at = time.monotonic()
    if run.evaluation_pending:
        found = {} if run.built.validation is None else _evaluate(run, position)[0]
        if position.index == 0:
            _epoch_end(run, position.epoch - 1, found)
    if position.index == 0 and not run.done(position):
        run.callbacks("on_epoch_begin", position.epoch)


def end_training(run: Run[Steps]) -> None:
    """Set the final weights, and call the callbacks, which may restore others."""
    run.best.restore()
    # With use_ema the averages become the weights, as at the end of Keras' fit().
    with run.built.session.strategy.scope():
        run.built.takeover.optimizer.finalize_variable_values(run.built.model.trainable_variables)
    run.callbacks("on_train_end")


def next_epoch(run: Run[Steps], position: Position) -> Position:
    """The position from which the next epoch counts."""
    if not run.done(position):
        run.callbacks("on_epoch_begin", position.epoch)
    return replace(position, loss=())


def after_step(run: Run[Steps], batch: GlobalBatch, position: Position, *, stop: bool, copy: bool = False) -> bool:
    """Report, evaluate and save, as due after a step; True if it evaluated. `copy`: save to memory, too.

    Raises StoppedError, saved, if `stop`; an evaluation that was due is then done at the next start, and the callbacks'
    end of the epoch waits for it.
    """
    epoch_ended = position.index == 0
    due = evaluation_due(run, position)
    if epoch_ended or run.log.due or run.done(position):
        report(run, batch, position)
    if copy and due and not stop:
        save_in_memory(run, position, evaluation_pending=True)
    in_epoch_line = epoch_ended and due and not stop
    found, comment = _evaluate(run, position, says=not in_epoch_line) if due and not stop else ({}, "")
    if epoch_ended:
        run.log.epoch_line(epoch=position.epoch, values={**run.last_epoch, **_of_validation(found)}, comment=comment)
        if found or not due:
            _epoch_end(run, batch.epoch, found)
    planned = _save_planned(run, position, epoch_ended=epoch_ended)
    _agree_before_save(run, position, planned=planned, last=stop or run.done(position))
    if stop:
        # Storage may go with the pod that is asked to stop.
        save_in_memory(run, position, evaluation_pending=due)
        save(run, position, evaluation_pending=due)
        wait_for_save(run, position)
        raise StoppedError(f"stopped by SIGTERM after step {position.step}, saved", "start it again to continue")
    if copy and not due:
        save_in_memory(run, position)
    if planned or save_due_by_time(run):
        save(run, position)
    return bool(found)


def _epoch_end(run: Run[Steps], epoch: int, found: dict[str, Any]) -> None:
    run.callbacks("on_epoch_end", epoch, {**run.last_epoch, **_of_validation(found)})
    if run.chiefs_state:
        _share_chiefs_state(run)


def _share_chiefs_state(run: Run[Steps]) -> None:
    """Send it to all workers for their copies in memory, because the chief's pod may be lost."""
    run.chiefs_state = json.loads(run.peers.broadcast_from_chief(json.dumps(run.callbacks.chiefs_state()).encode()))


def _of_validation(found: Mapping[str, Any]) -> dict[str, Any]:
    return {f"val_{name}": value for name, value in found.items()}


def evaluation_due(run: Run[Steps], position: Position) -> bool:
    """True if the `validation` split is evaluated here."""
    epoch = position.epoch if position.index == 0 else None
    due = config.evaluation_due(run.config.evaluate, step=position.step, epoch=epoch)
    return due and run.built.validation is not None and (epoch is None or run.callbacks.validates(epoch))


def _evaluate(run: Run[Steps], position: Position, *, says: bool = True) -> tuple[dict[str, Any], str]:
    """Evaluate the `validation` split, and compare it with the best; returns the results, and a short comment.

    `says`: log it in a line of its own.
    """
    assert run.built.validation is not None
    run.callbacks("on_test_begin")
    found = run.evaluate(run.built.validation, run.callbacks)
    run.log.evaluated(position.step, found)
    comment = run.best.update(found, position.step, _state(run, position))
    if says:
        say(f"validation after step {position.step}: {describe(found)}{comment}")
    run.callbacks("on_test_end", found)
    return found, comment


def values_so_far(run: Run[Steps], position: Position) -> dict[str, Any]:
    """Loss and metrics since the epoch began."""
    return run.built.steps.values(position.loss, run.metric_states)


def report(run: Run[Steps], batch: GlobalBatch, position: Position) -> None:
    """Print the progress."""
    values = run.last_epoch = values_so_far(run, position)
    run.log.line(phase=phases.TRAINING, step=position.step, epoch=batch.epoch + 1, values=values)
    run.callbacks("on_train_batch_end", position.step, values)


def restore(run: Run[Steps]) -> Position:
    """Restore the newest checkpoint: the variables, the sums of the metrics, the best evaluation, and the position."""
    run.heartbeat.spent(goodput.BUILDING)
    state = run.checkpoints.restore(run.peers)
    run.heartbeat.spent(goodput.RESTORING, mark=goodput.RESTORED)
    if state is None:
        run.log.resumed(run.first.step)
        return run.first
    run.last_epoch = state["lastEpoch"]
    if metrics.fit(run.built.model, state["metrics"]):
        run.metric_states = state["metrics"]
    elif state["position"]["index"]:
        say("the metrics changed since the checkpoint: those of this epoch count its rows from here on")
    loss = tuple((numerator, normaliser) for numerator, normaliser in state["loss"])
    position = Position(**{**state["position"], "loss": loss})
    again = max(0, run.heartbeat.ledger.reached - position.step)
    cost = f"; {counted(again, 'step is', 'steps are')} done again" if again else ""
    say(f"resuming after step {position.step} (epoch {position.epoch + 1}, batch {position.index}){cost}")
    position = _among_these_replicas(run, position)
    run.log.resumed(position.step)
    run.best.resumed(state, position.step)
    run.callbacks.resumed(state["callbacks"])
    run.evaluation_pending = state["owesEvaluation"]
    return position


def _among_these_replicas(run: Run[Steps], position: Position) -> Position:
    """`position` in the epochs of this run, with its steps counted again.

    Rows that are too few for the replicas form a batch for fewer replicas, so an epoch may have had more steps.
    """
    schedule = run.built.schedule
    if position.index >= schedule.steps_per_epoch:
        say(f"what is left of epoch {position.epoch + 1} is too little for {schedule.replicas} replicas: left out")
        position = replace(position, epoch=position.epoch + 1, index=0, loss=())
        run.metric_states = []
    if run.config.steps is None and run.config.epochs is not None:
        left = (run.config.epochs - position.epoch) * schedule.steps_per_epoch - position.index
        run.total_steps = run.log.steps = position.step + max(0, left)
    return position


def _save_planned(run: Run[Steps], position: Position, *, epoch_ended: bool) -> bool:
    """True if the checkpoint of this step is due on every worker."""
    settings = run.config.checkpoint
    epochs = config.epochs_between_saves(settings)
    by_step = settings.every_steps is not None and position.step % settings.every_steps == 0
    by_epoch = epoch_ended and epochs is not None and position.epoch % epochs == 0
    return by_step or by_epoch or run.done(position)


def _agree_before_save(run: Run[Steps], position: Position, *, planned: bool, last: bool) -> None:
    """Compare the workers' weights before the first, second, fourth, eighth, … checkpoint of a process, and before the
    last one.

    Reading those of large models takes seconds.
    """
    run.planned_saves += planned
    if run.peers.workers > 1 and (last or (planned and run.planned_saves.bit_count() == 1)):
        agree_on_weights(run.built.model, run.peers, position.step)


def save_due_by_time(run: Run[Steps]) -> bool:
    """True if checkpoint.everySeconds have passed since the last save. Only the chief saves, so its clock decides."""
    every = run.config.checkpoint.every_seconds
    due = every is not None and time.monotonic() - run.saved_at >= every
    return due and not run.checkpoints.writing


def _state(run: Run[Steps], position: Position) -> dict[str, Any]:
    """The state in a checkpoint besides the variables."""
    return {
        "position": {
            "epoch": position.epoch,
            "index": position.index,
            "step": position.step,
            "examples": position.examples,
        },
        "loss": [] if position.index == 0 else position.loss,
        "lastEpoch": run.last_epoch,
        "best": run.best.to_json(),
        "bestJudgedBy": run.best.criterion,
        "owesEvaluation": False,
    }


def save(run: Run[Steps], position: Position, *, evaluation_pending: bool = False) -> None:
    """Copy everything; a thread writes it while training continues."""
    run.heartbeat.beat(phases.SAVING, position.step)
    whole = partial(_whole_state, run, position, evaluation_pending=evaluation_pending)
    run.checkpoints.save(run.peers, position.step, whole)
    run.saved_at = time.monotonic()
    run.heartbeat.beat(phases.TRAINING, position.step)


def save_in_memory(run: Run[Steps], position: Position, *, evaluation_pending: bool = False) -> None:
    """Copy everything to memory, if this process makes in-memory checkpoints.

    Before an evaluation rather than after it: a process that is lost in the evaluation has completed this step.
    """
    if run.checkpoints.in_memory:
        whole = partial(_whole_state, run, position, evaluation_pending=evaluation_pending)
        began = time.monotonic()
        run.checkpoints.save_in_memory(position.step, whole)
        run.heartbeat.ledger.aside(goodput.SAVING, time.monotonic() - began)


def _whole_state(run: Run[Steps], position: Position, *, evaluation_pending: bool) -> dict[str, Any]:
    at_epoch_start = position.index == 0
    return {
        **_state(run, position),
        "owesEvaluation": evaluation_pending,
        "callbacks": _state_of_callbacks(run),
        "metrics": [np.zeros(v.shape) if at_epoch_start else np.asarray(v) for v in run.metric_states],
    }


def _state_of_callbacks(run: Run[Steps]) -> dict[str, Any]:
    own, chiefs = run.callbacks.state(), run.chiefs_state
    if run.peers.is_chief or not chiefs:
        return own
    return own | chiefs | {"callbacks": [*chiefs.get("callbacks", ()), *own.get("callbacks", ())]}


def wait_for_save(run: Run[Steps], position: Position) -> None:
    """Wait, on every worker, until the last save is published."""
    run.heartbeat.beat(phases.SAVING, position.step)
    run.checkpoints.wait()
    run.best.wait()
    run.peers.count(True)
