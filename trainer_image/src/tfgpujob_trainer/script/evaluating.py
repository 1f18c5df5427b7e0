"""evaluate() of a script's models: each worker computes its share of the rows, and all have the sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import keras

from tfgpujob_contract.strategies import Strategy
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.data.splits import agree_on_data
from tfgpujob_trainer.model.batch import batch_spec
from tfgpujob_trainer.model.build import build
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover
from tfgpujob_trainer.model.own_steps import has_own_steps
from tfgpujob_trainer.model.taken_over import take_over
from tfgpujob_trainer.model.variables import local_value
from tfgpujob_trainer.parameter_server.evaluate import evaluate_on_chief
from tfgpujob_trainer.parameter_server.step import ServerSteps
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.script.call import DEFAULT_BATCH, source_of
from tfgpujob_trainer.script.callbacks import CallCallbacks, chosen
from tfgpujob_trainer.script.held import Held
from tfgpujob_trainer.script.traced import traced
from tfgpujob_trainer.step.own_step import OwnSteps
from tfgpujob_trainer.step.synchronous import SynchronousSteps
from tfgpujob_trainer.step.trial import ROWS
from tfgpujob_trainer.train.built_model import SynchronizedSteps
from tfgpujob_trainer.train.equal_weights import take_the_chiefs
from tfgpujob_trainer.train.evaluation import Evaluator
from tfgpujob_trainer.train.session import Session

_WHAT = "evaluate()'s data"


class Evaluations:
    """Evaluates models of a script."""

    def __init__(self, session: Session, held: Held) -> None:
        self._session, self._held = session, held
        self._checked: WeakSet[Any] = WeakSet()
        """Metrics of a compile() that a fit() or an evaluate() has checked."""

    def __call__(self, model: keras.Model, given: Mapping[str, Any]) -> dict[str, Any]:
        """Loss and metrics over all rows, or over `steps` batches of them: each worker's share of them summed."""
        size = given["batch_size"] or DEFAULT_BATCH
        rows = (given["x"], given["y"], given["sample_weight"])
        data = source_of(*rows, _WHAT, size, steps=given["steps"])
        agree_on_data({_WHAT: data}, self._session.peers)
        callbacks = chosen(given["callbacks"], is_chief=self._session.env.is_chief)
        hooks = CallCallbacks(callbacks, model, given["verbose"])
        hooks("on_test_begin")
        steps = self._held.steps_of(model)
        values = (
            self._alone(model, data, size, hooks)
            if steps is None
            else self._within_fit(model, steps, data, size, hooks)
        )
        hooks("on_test_end", hooks.logs(values))
        return values

    def checked(self, model: keras.Model) -> bool:
        """Whether the metrics of the model's last compile() were checked before; they are from now on."""
        # What each compile() creates again; the model itself if it is compiled without any.
        compiled = model if model._compile_metrics is None else model._compile_metrics  # noqa: SLF001
        known = compiled in self._checked
        self._checked.add(compiled)
        return known

    def _alone(self, model: keras.Model, data: Source, size: int, hooks: CallCallbacks) -> dict[str, Any]:
        session, takeover = self._session, take_over(model, self._session.name)
        with self._held(model, takeover):
            with session.strategy.scope():
                model.reset_metrics()
                traced(model)
                for note in build(model, data.head(2), session.name, trains=False):
                    say(note)
                take_the_chiefs(model.weights, session.peers)
                if session.name == Strategy.PARAMETER_SERVER:
                    return self._on_chief(model, takeover, data, size)
                steps = self._steps(model, takeover, data)
            session.heartbeat.run_status.waits_for_peers = steps.waits_for_peers
            return self._evaluator(steps, data, size)(data, hooks)

    def _steps(self, model: keras.Model, takeover: OptimizerTakeover, data: Source) -> OwnSteps | SynchronousSteps:
        if has_own_steps(model):
            return OwnSteps(self._session.strategy, model, data.example(), name=self._session.name)
        steps = SynchronousSteps(self._session.strategy, model, takeover, data.example())
        if not self.checked(model):
            for note in steps.check_metrics(data.head(ROWS)):
                say(note)
        return steps

    def _evaluator(self, steps: SynchronizedSteps, data: Source, size: int) -> Evaluator:
        replicas = self._session.replicas
        schedule = Schedule(rows=data.rows, global_batch_size=max(replicas, size), replicas=replicas)
        return Evaluator(self._session, steps, schedule)

    def _within_fit(
        self, model: keras.Model, steps: Any, data: Source, size: int, hooks: CallCallbacks
    ) -> dict[str, Any]:
        """For a callback, by the steps of its fit(), which has taken over the model's optimizer and losses."""
        if self._session.env.is_asynchronous:
            raise ConfigError(
                "a callback of fit() calls evaluate(), and under ParameterServer the workers are at its steps",
                "pass fit() validation_data, or evaluate after it",
            )
        counted = [local_value(variable) for variable in model.metrics_variables]
        try:
            return self._evaluator(steps, data, size)(data, hooks)
        finally:
            steps.metric_states.restore(counted)

    def _on_chief(self, model: keras.Model, takeover: OptimizerTakeover, data: Source, size: int) -> dict[str, Any]:
        spec, fingerprint = batch_spec(data.example()), data.fingerprint()
        steps = ServerSteps(self._session.strategy, model, takeover, spec, fingerprint)
        return evaluate_on_chief(steps, data, data.batch_size or size, self._session.heartbeat)
