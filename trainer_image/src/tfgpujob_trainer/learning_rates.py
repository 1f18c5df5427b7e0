"""A learning-rate range test: the loss of each step while the learning rate rises geometrically.

advise/rates.py starts it. Trains the job's model on its data, with its batch size, on one device, and saves nothing. A
plain script runs up to its first fit(), which the test replaces.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import keras

from tfgpujob_contract.strategies import Strategy
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_contract.variables import Variable
from tfgpujob_trainer.cluster.devices import leave_threads_for_reading, prepare
from tfgpujob_trainer.contract import config, entrypoint, environment, script
from tfgpujob_trainer.contract.exits import ConfigError, TrainerError, classify, users_traceback
from tfgpujob_trainer.data.feed import Feed
from tfgpujob_trainer.model.own_steps import has_own_steps
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.script.run import run_with
from tfgpujob_trainer.script.takeover import Takeover
from tfgpujob_trainer.train.assemble import start_from
from tfgpujob_trainer.train.build import build_model
from tfgpujob_trainer.train.fit import Fit, fit_of_module
from tfgpujob_trainer.train.loop import SynchronousTrainer
from tfgpujob_trainer.train.session import Session, open_session

_ENOUGH = 3
"""The test ends when the loss has risen by this multiple of its first value."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the file, and return the exit code."""
    options = _parser().parse_args(arguments)
    low, high, steps = options.lowest, options.highest, options.steps
    try:
        settings = config.load(options.config, options.set)
        rates = [low * (high / low) ** (i / (steps - 1)) for i in range(steps)]
        losses = measure(settings, rates)
    except Exception as error:  # noqa: BLE001 (every end is mapped)
        outcome = classify(error, has_peers=False)
        if outcome.cause == "Exception":
            print(users_traceback(error), end="", file=sys.stderr)
        print(outcome.line(), file=sys.stderr)
        return int(outcome.code)
    options.found.write_text(json.dumps({"rates": rates[: len(losses)], "losses": losses}))
    return 0


def measure(settings: TrainerConfig, rates: Sequence[float]) -> list[float]:
    """The loss of each step's batch before the step, until it is not finite, or too large to continue."""
    alone = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", Variable.STRATEGY)}
    env = replace(environment.read(alone), strategy=Strategy.ONE_DEVICE, role="worker", index=0)
    if settings.mode != "train":
        raise ConfigError("trainer.mode is predict, which has no learning rate", "test a job that trains")
    path = script.find(settings, env)
    leave_threads_for_reading(settings.data.parallel_reads)
    devices = prepare(settings, env)
    session = open_session(settings, env, Heartbeat(None), devices[:1])
    if path is None:
        module = entrypoint.load(settings.entrypoint, settings.params, env.code_directory)
        return list(losses_of(fit_of_module(settings, module, env, session.heartbeat), session, rates))
    losses: list[float] = []

    def test(fit: Fit) -> NoReturn:
        losses.extend(losses_of(fit, session, rates))
        raise _MeasuredError("the learning rate is tested")

    with suppress(_MeasuredError):
        run_with(Takeover(path, session, test), path, session)
        raise ConfigError(f"{path.name} has run, and called no fit()", "test a script that trains")
    return losses


class _MeasuredError(TrainerError):
    """Ends a script in its first fit()."""


def losses_of(fit: Fit, session: Session, rates: Sequence[float]) -> Iterator[float]:
    """The loss of each step's batch before the step, of one model that takes one step with each of `rates`."""
    settings = replace(fit.settings, epochs=None, steps=len(rates))
    with session.strategy.scope():
        built = build_model(replace(fit, settings=settings), session, SynchronousTrainer(settings, session))
        start_from(settings, built.model, built.model.weights, session.peers)
    _check(built.model, built.takeover.optimizer)
    feed = Feed(built.data, built.schedule, 0, 1, (0, 0), parallel_reads=settings.data.parallel_reads)
    first = lowest = math.nan
    try:
        for rate in rates:
            built.takeover.optimizer.learning_rate.assign(rate)
            batch = feed.next()
            whole = batch.rows == settings.global_batch_size
            result = built.steps.train(batch.replicas, edges=batch.edges, stop=False, whole=whole)
            loss = float(built.steps.values(result.loss, result.metrics)["loss"])
            if any(result.not_finite) or not math.isfinite(loss):
                return
            first, lowest = (loss, loss) if math.isnan(first) else (first, min(lowest, loss))
            yield loss
            if loss > first + _ENOUGH * max(first - lowest, abs(first)):
                return
            if batch.index + 1 == built.schedule.steps_per_epoch:
                built.steps.metric_states.reset()
    finally:
        feed.close()


def _check(model: keras.Model, optimizer: Any) -> None:
    name = type(model).__name__
    if has_own_steps(model):
        raise ConfigError(f"{name} has a train_step of its own, and may have several learning rates", "test it by hand")
    if not isinstance(getattr(optimizer, "_learning_rate", None), keras.Variable):
        raise ConfigError(
            f"the learning rate of {name}'s optimizer is a schedule", "give the optimizer a number for this test"
        )


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m tfgpujob_trainer.learning_rates", description=__doc__)
    result.add_argument("--config", type=Path, required=True)
    result.add_argument("--set", action="append", default=[])
    result.add_argument("--lowest", type=float, required=True)
    result.add_argument("--highest", type=float, required=True)
    result.add_argument("--steps", type=int, required=True)
    result.add_argument("--found", type=Path, required=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
