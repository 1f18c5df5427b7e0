"""The chief's training loop: segments of asynchronous steps, which are joined between two segments.

Joined means that every scheduled step is done and fetched. Only then is a checkpoint made or the model evaluated, so
both have one state, and a checkpoint's position says exactly which batches are in it. The same holds for in-memory
checkpoints; the time that workers are idle for them counts as their cost, so that they are made less often.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tfgpujob_contract import phases
from tfgpujob_trainer.checkpoints.store import variables_to_save
from tfgpujob_trainer.contract.config import evaluation_due
from tfgpujob_trainer.contract.exits import NotFiniteError, PeerLostError
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.data.feed import GlobalBatch
from tfgpujob_trainer.model.loss import add_loss
from tfgpujob_trainer.model.variables import local_value
from tfgpujob_trainer.parameter_server.dispatch import UNREACHABLE, BatchIndex, Dispatcher
from tfgpujob_trainer.parameter_server.memory_limits import fetch_limits
from tfgpujob_trainer.parameter_server.pause import Pause
from tfgpujob_trainer.parameter_server.rows import TRAIN
from tfgpujob_trainer.parameter_server.step import ServerSteps, Sums
from tfgpujob_trainer.parameter_server.variable_placement import describe_placement
from tfgpujob_trainer.parameter_server.wait_for_servers import wait_for_servers
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.timing import StepTime
from tfgpujob_trainer.train.run import (
    Position,
    Run,
    after_step,
    begin_training,
    end_training,
    next_epoch,
    report,
    restore,
    save_due_by_time,
    wait_for_save,
)


def train_on_workers(run: Run[ServerSteps], dispatcher: Dispatcher) -> tuple[Position, dict[str, int]]:
    """Train to the last step; returns the position, and additions to the summary. See Chief.train."""
    variables, servers = variables_to_save(run.built.model), len(run.built.session.env.servers)
    wait_for_servers(variables, dispatcher.steady, servers)
    for line in describe_placement(variables, fetch_limits(servers)):
        say(line)
    chief = Chief(run, dispatcher)
    position = chief.train()
    return position, {"repeatedSteps": chief.repeated}


class Chief:
    """Trains one Run on the workers behind a Dispatcher.

    `repeated` steps have been applied twice: their worker was lost between the update and its answer, and another
    worker repeated them. A step of which a lost worker did only a part is not counted.
    """

    def __init__(self, run: Run[ServerSteps], dispatcher: Dispatcher) -> None:
        self._run, self._steps, self._dispatcher = run, run.built.steps, dispatcher
        self.repeated = 0
        self._copies = False
        """Whether an in-memory checkpoint may follow the last scheduled batch."""

    def train(self) -> Position:
        """Train from the last checkpoint, or the beginning, to the last step.

        Raises StoppedError after a cooperative stop (saved), NotFiniteError, FencedError, PeerLostError.
        """
        position = restore(self._run)
        self._count_repeated(position)
        try:
            begin_training(self._run, position)
            self._run.callbacks.set_before_step()  # the step is traced with the first batch
            while not self._run.done(position):
                position = self._after_segment(*self._train_segment(position))
            wait_for_save(self._run, position)
            end_training(self._run)
        except BaseException as error:
            # A checkpoint of a step before the error is valid. But TensorFlow may wait for a silent worker in any
            # operation that it has not run before, including writing a file here.
            with contextlib.suppress(Exception):
                self._run.heartbeat.beat(phases.SAVING, position.step)
                self._run.checkpoints.wait(self._run.config.watchdog.step_seconds / 2)
            if isinstance(error, UNREACHABLE):
                # The loss of a worker is handled earlier: its batch is scheduled on another one.
                raise PeerLostError(
                    "a parameter server was lost, and its variables with it",
                    "it and the chief start again, from the last checkpoint",
                ) from error
            raise
        finally:
            self._run.log.close()
        return position

    def _train_segment(self, position: Position) -> tuple[GlobalBatch, Position]:
        """Train one segment and join it; the last batch, and the position after it."""
        run, schedule = self._run, self._run.built.schedule
        since = time.monotonic()
        pauses = Pause(since)
        for (_, epoch, index), vector in self._dispatcher.run(self._steps.train, self._batches(position, pauses)):
            place, sums = schedule.bounds(index), self._steps.sums(vector)
            batch = GlobalBatch(epoch, index, place.stop - place.start, ())
            position = self._add(position.after(batch, schedule.steps_per_epoch), sums)
            seconds, since = time.monotonic() - since, time.monotonic()
            pauses.step_done()
            waited = min(seconds, sums.read_seconds / self._dispatcher.workers)
            run.log.add(batch.rows, StepTime(seconds, waited, 0.0), [])
            run.heartbeat.beat(phases.TRAINING, position.step)
            if position.index and run.log.due:
                report(run, batch, position)
        run.checkpoints.in_memory_cost(pauses.idle(time.monotonic()))
        return batch, position

    def _batches(self, position: Position, pauses: Pause) -> Iterator[BatchIndex]:
        """The batches of a segment, at least one. A segment ends with the epoch, where something is due, and at a
        stop.
        """
        run, every = self._run, self._run.config.checkpoint.every_steps
        for step, index in enumerate(range(position.index, run.built.schedule.steps_per_epoch), position.step + 1):
            self._copies = run.checkpoints.in_memory and run.checkpoints.in_memory_may_follow_step()
            yield TRAIN, position.epoch, index
            due = (every and step % every == 0) or evaluation_due(run.config.evaluate, step=step, epoch=None)
            due = due or save_due_by_time(run)
            if step == run.total_steps or due or run.stop.set:
                return
            if self._copies and pauses.worth_it(self._dispatcher.in_flight):
                pauses.begin(time.monotonic())
                return

    def _add(self, position: Position, sums: Sums) -> Position:
        """Add the result of a step."""
        if not np.isfinite([numerator for numerator, _ in sums.loss]).all():
            raise NotFiniteError.of_step(position.step)
        states = self._run.metric_states or [np.zeros_like(state) for state in sums.metrics]
        self._run.metric_states = [old + new for old, new in zip(states, sums.metrics, strict=True)]
        return replace(position, loss=add_loss(position.loss, sums.loss))

    def _after_segment(self, batch: GlobalBatch, position: Position) -> Position:
        """Report, evaluate and save, as due after a segment."""
        run = self._run
        self._count_repeated(position)
        after_step(run, batch, position, stop=run.stop.set and not run.done(position), copy=self._copies)
        if position.index == 0:
            run.metric_states = []
            return next_epoch(run, position)
        return position

    def _count_repeated(self, position: Position) -> None:
        found = int(local_value(self._run.built.takeover.optimizer.iterations)) - position.step
        if found != self.repeated:
            say(f"{counted(found - self.repeated, 'step was', 'steps were')} taken twice: a worker was lost meanwhile")
            self.repeated = found
