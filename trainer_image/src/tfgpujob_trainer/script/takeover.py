"""fit(), evaluate() and predict() of a script's models, executed by the trainer's own loop under the job's strategy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakSet

import keras
import numpy as np
import tensorflow as tf

from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.contract.exits import ConfigError, Outcome, TrainerError
from tfgpujob_trainer.contract.spec import TrainerConfig
from tfgpujob_trainer.contract.strategies import PARAMETER_SERVER
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Indexed, Source
from tfgpujob_trainer.data.sources.batches import Batches
from tfgpujob_trainer.data.splits import agree_on_data
from tfgpujob_trainer.model.batch import batch_spec
from tfgpujob_trainer.model.build import build
from tfgpujob_trainer.model.loss import give_back_losses
from tfgpujob_trainer.model.metrics import metric_variables
from tfgpujob_trainer.model.optimizer_takeover import (
    OptimizerTakeover,
    as_compiled,
    give_back_optimizers,
    take_over_optimizer,
)
from tfgpujob_trainer.model.own_steps import has_own_steps, leave_optimizers
from tfgpujob_trainer.model.replica_seeds import draw_as_compiled
from tfgpujob_trainer.model.variables import local_value
from tfgpujob_trainer.parameter_server.evaluate import evaluate_on_chief
from tfgpujob_trainer.parameter_server.serve import serve_rows
from tfgpujob_trainer.parameter_server.step import ServerSteps
from tfgpujob_trainer.parameter_server.trainer import trainer_of
from tfgpujob_trainer.reporting import phases
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.script.agreement import Agreement
from tfgpujob_trainer.script.as_module import as_module, settings_of
from tfgpujob_trainer.script.call import BATCHED, DEFAULT_BATCH, FitCall, FitData, fit_data, same_rows, source_of
from tfgpujob_trainer.script.callbacks import CallCallbacks, ScriptCallbacks, chosen, share_logs
from tfgpujob_trainer.script.datasets import parts
from tfgpujob_trainer.script.trained_layers import remember_trained, trained_as_at_first
from tfgpujob_trainer.step.own_step import OwnSteps
from tfgpujob_trainer.step.synchronous import SynchronousSteps
from tfgpujob_trainer.step.trial import ROWS
from tfgpujob_trainer.train.assemble import assemble
from tfgpujob_trainer.train.build import build_model
from tfgpujob_trainer.train.built_model import Steps, SynchronizedSteps
from tfgpujob_trainer.train.evaluation import Evaluator
from tfgpujob_trainer.train.evaluator_replica import follow
from tfgpujob_trainer.train.finish import finish
from tfgpujob_trainer.train.session import Session
from tfgpujob_trainer.train.trainer import Trainer


class FollowedError(TrainerError):
    """The end of an evaluator's script, in its first fit()."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self._outcome = outcome

    def outcome(self) -> Outcome:
        """How the evaluator ended."""
        return self._outcome


class Takeover:
    """Executes the calls of a script's models. Each fit() has its own checkpoints; the first one's are the job's."""

    def __init__(
        self,
        path: Path,
        session: Session,
        on_fit: Callable[[keras.Model, FitCall], keras.callbacks.History] | None = None,
    ) -> None:
        """`on_fit`: replaces the training of a fit()."""
        self._path, self._session, self._env = path, session, session.env
        self._on_fit = on_fit or self._train
        self.agree = Agreement(session.peers, session.env.worker_names, path)
        self._held: tuple[keras.Model, OptimizerTakeover, Steps | None] | None = None
        """The model of the current fit() or evaluate(); with the steps of a fit(), whose callbacks may call
        evaluate()."""
        self._tf_config = os.environ.get("TF_CONFIG")
        """This task's own: a script on a worker of parameter servers sees the chief's instead."""
        self._epochs = 0
        self._served: FitCall | None = None
        """The first fit() under ParameterServer, whose rows the workers have."""
        self._checked: WeakSet[Any] = WeakSet()
        """Metrics of a compile() that a fit() or an evaluate() has checked."""
        self.fits = self.calls = 0
        self.summary: dict[str, Any] = {}

    def fit(self, model: keras.Model, call: FitCall) -> keras.callbacks.History:
        """Train, or continue this fit() from its last checkpoint; returns its history.

        A worker under ParameterServer, and an evaluator, never leave it: they end with StoppedError, FollowedError.
        """
        with trained_as_at_first(model):
            return self._on_fit(model, call)

    def _train(self, model: keras.Model, call: FitCall) -> keras.callbacks.History:
        self.calls += 1
        if call.initial_epoch >= call.epochs:
            return _without_epochs(model, call, is_chief=self._env.is_chief)
        self.fits += 1
        data = fit_data(call, alike=self._env.is_asynchronous)
        _refuse_steps_of_several_batches(model, data.batch_size)
        settings = settings_of(call, data, self._session.job, number=self.fits, epochs_before=self._epochs)
        self._epochs += call.epochs - call.initial_epoch
        module = as_module(self._path, model, data)
        if self._env.is_asynchronous:
            self._check_asynchronous(call)
        if self._env.serves:
            if self._tf_config is not None:
                os.environ["TF_CONFIG"] = self._tf_config
            serve_rows(settings, module, self._env, self._session.heartbeat)
        trainer = trainer_of(settings, self._session)
        if self._env.is_evaluator:
            self._follow(settings, module, trainer, data)
        say(f"fit() number {self.fits} of {self._path.name}")
        self.agree.say_of_callbacks(call.callbacks)
        with self._session.strategy.scope():
            model.reset_metrics()  # which evaluate() leaves as they are
            built = build_model(settings, self._session, module, trainer)
        self._checked.add(_compiled_metrics(model))
        remember_trained(model)
        with self._holding(model, built.takeover, built.steps):
            with self._session.strategy.scope():
                hooks = ScriptCallbacks(
                    chosen(call.callbacks, is_chief=self._env.is_chief),
                    model,
                    self._session.peers,
                    agree=self.agree,
                    epochs=call.epochs,
                    steps=built.schedule.steps_per_epoch,
                    verbose=call.verbose,
                    validation_freq=call.validation_freq,
                )
                run = assemble(settings, built, trainer.evaluator(built), initial_epoch=call.initial_epoch, hooks=hooks)
            if self._env.is_asynchronous and (hooks.per_batch or hooks.per_test_batch):
                say("no callback's on_train_batch_…() or on_test_batch_…() is called: steps end in no order")
            position, more = trainer.train(run)
            self.summary = finish(run, position, more)
            if isinstance(data.train, Batches):
                # It is unknown how far an epoch that a callback has aborted was read ahead.
                data.train.pass_over(position.epoch + (position.index > 0))
        if not self._env.is_asynchronous:
            share_logs(call.callbacks, self._session.peers)
        return hooks.history

    def _check_asynchronous(self, call: FitCall) -> None:
        """Raise ConfigError for data that workers can't compute by the number of a batch."""
        if isinstance(call.x, Iterator):
            raise ConfigError(
                "a generator, and under ParameterServer a worker may be given a batch once more, which it can't go "
                "back to",
                "make a tf.data.Dataset of it by from_generator(), or use MultiWorkerMirrored",
            )
        self._served = self._served or call
        if call is not self._served and not same_rows(call, self._served):
            raise ConfigError(
                "a second fit() with other data, and under ParameterServer the workers have run the script up to its "
                "first one",
                "pass every fit() the same arrays or tf.data.Dataset, with the same batch_size, or use "
                "MultiWorkerMirrored",
            )

    def _follow(self, settings: TrainerConfig, module: Entrypoint, trainer: Trainer[Any], data: FitData) -> NoReturn:
        """As the evaluator of a job: evaluate the checkpoints that the workers write in this fit()."""
        if data.validation is None:
            raise ConfigError("an evaluator has nothing to evaluate on", "pass fit() validation_data")
        with self._session.strategy.scope():
            built = build_model(settings, self._session, module, trainer)
            outcome = follow(settings, built, trainer.evaluator(built))
        raise FollowedError(outcome)

    def evaluate(self, model: keras.Model, given: Mapping[str, Any]) -> dict[str, Any]:
        """Loss and metrics over all rows, or over `steps` batches of them: each worker's share of them summed."""
        self.calls += 1
        size = given["batch_size"] or DEFAULT_BATCH
        rows = (given["x"], given["y"], given["sample_weight"])
        data = source_of(*rows, "evaluate", size, steps=given["steps"])
        agree_on_data({"evaluate": data}, self._session.peers)
        hooks = CallCallbacks(chosen(given["callbacks"], is_chief=self._env.is_chief), model, given["verbose"])
        hooks("on_test_begin")
        values = self._evaluated(model, data, size, hooks)
        hooks("on_test_end", hooks.logs(values))
        return values

    def _evaluated(self, model: keras.Model, data: Source, size: int, hooks: CallCallbacks) -> dict[str, Any]:
        name = self._session.name
        if self._held is not None and self._held[0] is model:
            return self._evaluate_within_fit(model, self._held[2], data, size, hooks)
        own = has_own_steps(model)
        takeover = leave_optimizers(model, name, 1) if own else take_over_optimizer(model, name, None)
        with self._holding(model, takeover):
            with self._session.strategy.scope():
                model.reset_metrics()
                build(model, data.head(2), name, trains=False)
            if name == PARAMETER_SERVER:
                return self._evaluate_on_chief(model, takeover, data, size)
            with self._session.strategy.scope():
                steps: SynchronizedSteps
                if own:
                    steps = OwnSteps(self._session.strategy, model, data.example(), name=name)
                else:
                    steps = of_trainer = SynchronousSteps(self._session.strategy, model, takeover, data.example())
                    if _compiled_metrics(model) not in self._checked:
                        for note in of_trainer.check_metrics(data.head(ROWS)):
                            say(note)
                        self._checked.add(_compiled_metrics(model))
            self._session.heartbeat.run_status.waits_for_peers = steps.waits_for_peers
            return self._evaluator(steps, data, size, leaves_metrics=True)(data, hooks)

    def _evaluator(
        self, steps: SynchronizedSteps, data: Source, size: int, *, leaves_metrics: bool = False
    ) -> Evaluator:
        replicas = self._session.replicas
        schedule = Schedule(rows=data.rows, global_batch_size=max(replicas, size), replicas=replicas)
        return Evaluator(self._session, steps, schedule, leaves_metrics)

    def _evaluate_within_fit(
        self, model: keras.Model, steps: Any, data: Source, size: int, hooks: CallCallbacks
    ) -> dict[str, Any]:
        """For a callback, by the steps of its fit(), which has taken over the model's optimizer and losses."""
        if self._env.is_asynchronous:
            raise ConfigError(
                "a callback of fit() calls evaluate(), and under ParameterServer the workers are at its steps",
                "pass fit() validation_data, or evaluate after it",
            )
        counted = [local_value(variable) for variable in metric_variables(model)]
        try:
            return self._evaluator(steps, data, size)(data, hooks)
        finally:
            steps.metric_states.restore(counted)

    def _evaluate_on_chief(
        self, model: keras.Model, takeover: OptimizerTakeover, data: Source, size: int
    ) -> dict[str, Any]:
        with self._session.strategy.scope():
            spec, fingerprint = batch_spec(data.example()), data.fingerprint()
            steps = ServerSteps(self._session.strategy, model, takeover, spec, fingerprint)
        return evaluate_on_chief(steps, data, data.batch_size or size, self._session.heartbeat)

    def predict(
        self,
        model: keras.Model,
        x: Any,
        *,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """The outputs for all rows; every worker computes all of them, since the script on each wants them."""
        self.calls += 1
        own = type(model).predict_step is not keras.Model.predict_step
        if model.predict_function is None:  # which compile() forgets, as the one that Keras keeps there
            step = model.predict_step if own else partial(model, training=False)
            model.predict_function = tf.function(step, autograph=False, reduce_retracing=True)
        hooks = CallCallbacks(chosen(callbacks, is_chief=self._env.is_chief), model, verbose)
        hooks("on_predict_begin")
        parts = []
        for index, batch in enumerate(islice(_batches(x, batch_size or DEFAULT_BATCH, whole=own), steps)):
            hooks("on_predict_batch_begin", index)
            parts.append(tf.nest.map_structure(np.asarray, model.predict_function(batch)))
            hooks("on_predict_batch_end", index, {"outputs": parts[-1]})
            self._session.heartbeat.beat(phases.PREDICTING)
        hooks("on_predict_end")
        return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)

    @contextmanager
    def as_compiled(self, model: keras.Model) -> Iterator[None]:
        """The model as its author compiled it, while a callback of fit() saves it."""
        if self._held is None or self._held[0] is not model:
            yield
            return
        with as_compiled(self._held[1]):
            yield

    @contextmanager
    def _holding(self, model: keras.Model, takeover: OptimizerTakeover, steps: Steps | None = None) -> Iterator[None]:
        """Restore the model when the trainer is done with it."""
        before, self._held = self._held, (model, takeover, steps)
        try:
            yield
        finally:
            self._held = before
            give_back_optimizers(model, takeover)
            give_back_losses(model)
            draw_as_compiled(model)


def _batches(x: Any, size: int, *, whole: bool) -> Iterator[Any]:
    """What predict() computes at a time: a dataset's own batches, or that many rows of arrays.

    Their inputs or, if `whole`, what Keras gives to a predict_step().
    """
    if isinstance(x, BATCHED):
        batches = (x[i] for i in range(x.num_batches)) if isinstance(x, keras.utils.PyDataset) else x
        yield from batches if whole else (parts(batch)[0] for batch in batches)
        return
    data = source_of(x, None, None, "predict", size)
    assert isinstance(data, Indexed)
    for start in range(0, data.rows, size):
        rows = data.tensors(np.arange(start, min(start + size, data.rows)))
        yield rows if whole and isinstance(x, tuple | list) else rows[0]


def _compiled_metrics(model: keras.Model) -> Any:
    """What each compile() creates again; the model itself if it is compiled without any."""
    compiled = model._compile_metrics  # noqa: SLF001
    return model if compiled is None else compiled


def _without_epochs(model: keras.Model, call: FitCall, *, is_chief: bool) -> keras.callbacks.History:
    """The history of a fit() whose epochs are all done before it begins, as Keras' own: empty."""
    history = keras.callbacks.History()
    callbacks = [*chosen(call.callbacks, is_chief=is_chief), history]
    hooks = CallCallbacks(callbacks, model, call.verbose, epochs=call.epochs)
    hooks("on_train_begin")
    hooks("on_train_end")
    return history


def _refuse_steps_of_several_batches(model: keras.Model, rows: int) -> None:
    optimizer = getattr(model, "optimizer", None)
    steps = getattr(getattr(optimizer, "inner_optimizer", optimizer), "gradient_accumulation_steps", None)
    if steps:
        raise ConfigError(
            f"the optimizer says gradient_accumulation_steps={steps}: Keras makes one step of {steps} batches, the "
            "trainer one of each",
            f"leave it out and make batches of {steps * rows} rows; trainer.accumulate: {steps} computes {rows} at a "
            "time",
        )
