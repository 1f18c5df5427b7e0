"""fit() of a script's models, executed by the trainer's own loop under the job's strategy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import keras
import tensorflow as tf

from tfgpujob_trainer.contract.exits import ConfigError, Outcome, TrainerError
from tfgpujob_trainer.data.sources.batches import Batches
from tfgpujob_trainer.parameter_server.serve import serve_rows
from tfgpujob_trainer.parameter_server.trainer import trainer_of
from tfgpujob_trainer.reporting.log import say, say_once
from tfgpujob_trainer.script.agreement import Agreement
from tfgpujob_trainer.script.call import BATCHED, WHAT, FitCall, FitData, fit_data, same_rows, settings_of
from tfgpujob_trainer.script.callbacks import CallCallbacks, ScriptCallbacks, chosen, share_logs
from tfgpujob_trainer.script.evaluating import Evaluations
from tfgpujob_trainer.script.held import Held
from tfgpujob_trainer.script.traced import remember_trained, trained_as_at_first
from tfgpujob_trainer.train.assemble import assemble
from tfgpujob_trainer.train.build import build_model
from tfgpujob_trainer.train.callbacks import Hooks
from tfgpujob_trainer.train.evaluator_replica import follow
from tfgpujob_trainer.train.finish import finish
from tfgpujob_trainer.train.fit import Fit
from tfgpujob_trainer.train.session import Session


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

    def __init__(self, path: Path, session: Session, on_fit: Callable[[Fit], None] | None = None) -> None:
        """`on_fit`: replaces the training of a fit()."""
        self._path, self.session, self._on_fit = path, session, on_fit
        self.agree = Agreement(session.peers, session.env.worker_names, path)
        self.held = Held()
        self.evaluate = Evaluations(session, self.held)
        self._tf_config = os.environ.get("TF_CONFIG")
        """This task's own: a script on a worker of parameter servers sees the chief's instead."""
        self._epochs = 0
        self._served: FitCall | None = None
        """The first fit() under ParameterServer, whose rows the workers have."""
        self.fits = self.calls = 0
        self.summary: dict[str, object] = {}

    def fit(self, model: keras.Model, call: FitCall) -> keras.callbacks.History:
        """Train, or continue this fit() from its last checkpoint; returns its history.

        A worker under ParameterServer, and an evaluator, never leave it: they end with StoppedError, FollowedError.
        """
        if call.initial_epoch >= call.epochs:
            return _without_epochs(model, call, is_chief=self.session.env.is_chief)
        self.fits += 1
        data = fit_data(call, alike=self.session.env.is_asynchronous)
        with trained_as_at_first(model, data.train.example(), _static(call, data)):
            fit = self._fit_of(model, call, data)
            (self._on_fit or partial(self._train, call, data))(fit)
        history: keras.callbacks.History = model.history
        return history

    def _fit_of(self, model: keras.Model, call: FitCall, data: FitData) -> Fit:
        session = self.session

        def hooks(model: keras.Model, epochs: int, steps: int) -> Hooks:
            callbacks = chosen(call.callbacks, is_chief=session.env.is_chief)
            return ScriptCallbacks(
                callbacks,
                model,
                session.peers,
                agree=self.agree,
                not_on_all=self.agree.on_callbacks(call.callbacks),
                epochs=epochs,
                steps=steps,
                verbose=call.verbose,
                validation_freq=call.validation_freq,
            )

        settings = settings_of(call, data, session.job, number=self.fits, epochs_before=self._epochs)
        self._epochs += call.epochs - call.initial_epoch
        return Fit(
            settings=settings,
            code=self._path,
            model=lambda: model,
            split={"train": data.train, "validation": data.validation}.get,
            names=lambda split: WHAT.get(split, split),
            hooks=hooks,
            initial_epoch=call.initial_epoch,
            of_script=True,
        )

    def _train(self, call: FitCall, data: FitData, fit: Fit) -> None:
        session, model = self.session, fit.model()
        if session.env.is_asynchronous:
            self._check_asynchronous(call)
        if session.env.serves:
            if self._tf_config is not None:
                os.environ["TF_CONFIG"] = self._tf_config
            serve_rows(fit, session.env, session.heartbeat)
        session.heartbeat.of_another_fit()
        say(f"fit() number {self.fits} of {self._path.name}")
        if (backend := os.environ.get("KERAS_BACKEND", "tensorflow")) != "tensorflow":
            say_once(f"KERAS_BACKEND={backend} in the script has no effect: Keras computes with TensorFlow")
        trainer = trainer_of(fit.settings, session)
        with session.strategy.scope():
            model.reset_metrics()  # which evaluate() leaves as they are
            built = build_model(fit, session, trainer)
            evaluate = trainer.evaluator(built)
            if session.env.is_evaluator:
                raise FollowedError(follow(built, evaluate))
        self.evaluate.checked(model)
        remember_trained(model)
        with self.held(model, built.takeover, built.steps):
            with session.strategy.scope():
                run = assemble(built, evaluate)
            if session.env.is_asynchronous and (run.callbacks.per_batch or run.callbacks.per_test_batch):
                say("no callback's on_train_batch_…() or on_test_batch_…() is called: steps end in no order")
            position, more = trainer.train(run)
            self.summary = finish(run, position, more)
            if isinstance(data.train, Batches):
                # It is unknown how far an epoch that a callback has aborted was read ahead.
                data.train.pass_over(position.epoch + (position.index > 0))
        if not session.env.is_asynchronous:
            share_logs(call.callbacks, session.peers)

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


def _static(call: FitCall, data: FitData) -> int | None:
    """The rows of each batch where Keras' step is traced for their number: arrays may have no batch with fewer."""
    if isinstance(call.x, tf.data.Dataset):
        size: int | None = tf.nest.flatten(call.x.element_spec)[0].shape[0]
        return size
    return None if isinstance(call.x, BATCHED) or data.train.rows % data.batch_size else data.batch_size


def _without_epochs(model: keras.Model, call: FitCall, *, is_chief: bool) -> keras.callbacks.History:
    """The history of a fit() whose epochs are all done before it begins, as Keras' own: empty."""
    history = keras.callbacks.History()
    callbacks = [*chosen(call.callbacks, is_chief=is_chief), history]
    hooks = CallCallbacks(callbacks, model, call.verbose, epochs=call.epochs)
    hooks("on_train_begin")
    hooks("on_train_end")
    return history
