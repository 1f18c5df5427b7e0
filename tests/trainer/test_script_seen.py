"""What a script and its callbacks see of weights, trainable layers and metrics, at the moment that Keras shows them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from tests.trainer.inprocess import strategy_over, takeover_of

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.script.call import FitCall


class Seen(keras.callbacks.Callback):
    """The weights at some moments."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def on_test_begin(self, logs=None):
        self.weights.append(self.model.get_weights()[0])

    def on_train_end(self, logs=None):
        self.weights.append(self.model.get_weights()[0])


def test_a_fit_without_epochs_gives_an_empty_history(tmp_path):
    """A script that is resumed after its last epoch asks for none."""
    strategy = strategy_over(1)
    takeover = takeover_of(tmp_path)

    def seen(fit, **given):
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        began: list[Any] = []
        hook = keras.callbacks.LambdaCallback(on_train_begin=began.append, on_train_end=began.append)
        history = fit(model, x=np.ones((8, 2)), y=np.ones(8), callbacks=[hook], **given)
        return history.history, history.epoch, history.params, history.model is model, began

    for given in ({"epochs": 0}, {"epochs": 3, "initial_epoch": 3}):
        ours = seen(lambda model, **call: takeover.fit(model, FitCall(**call)), **given)
        keras_own = seen(lambda model, **call: model.fit(**call, verbose=0), **given)
        assert (*ours[:2], *ours[3:]) == (*keras_own[:2], *keras_own[3:])
        assert ours[2]["epochs"] == keras_own[2]["epochs"]
    assert takeover.fits == 0


def test_callbacks_find_the_weights_that_keras_has_at_that_moment(tmp_path):
    """SwapEMAWeights swaps before an evaluation; the averages are the weights before EarlyStopping restores its own."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(96, 5)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")

    strategy = strategy_over(1)

    def trained(fit):
        keras.utils.set_random_seed(5)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        with strategy.scope():
            model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
            model.compile(keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.8), loss)
        seen = Seen()
        restores = keras.callbacks.EarlyStopping("val_loss", mode="max", patience=9, restore_best_weights=True)
        callbacks = [keras.callbacks.SwapEMAWeights(), restores, seen]
        history = fit(model, x=x[:64], y=y[:64], batch_size=16, epochs=3, shuffle=False, callbacks=callbacks)
        return history.history["val_loss"], [*seen.weights, model.get_weights()[0]]

    def by_trainer(model, **given):
        takeover = takeover_of(tmp_path)
        return takeover.fit(model, FitCall(**given, validation_data=(x[64:], y[64:])))

    def by_keras(model, **given):
        return model.fit(**given, validation_data=(x[64:], y[64:]), verbose=0)

    (expected, wanted), (losses, found) = trained(by_keras), trained(by_trainer)
    assert np.abs(np.subtract(losses, expected)).max() < 1e-6
    assert [np.abs(a - b).max() < 1e-6 for a, b in zip(found, wanted, strict=True)] == [True] * 5


@pytest.mark.parametrize(
    ("freezes", "compiles", "weighs"),
    [(True, True, False), (True, False, False), (False, True, False), (False, False, False), (True, False, True)],
)
def test_a_layer_is_frozen_and_set_free_when_keras_does_it(freezes, compiles, weighs, float64, tmp_path, capsys):
    """Without compile() its own step function continues unchanged, unless it is traced again for other rows."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(32, 3))
    y = x.sum(axis=1)
    strategy = strategy_over(1)

    def trained(fit):
        keras.utils.set_random_seed(5)
        with strategy.scope():
            base = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(4)])
            model = keras.Sequential([base, keras.layers.BatchNormalization(), keras.layers.Dense(1)])
            base.layers[1].trainable = False
            base.layers[0].trainable = freezes
            model.compile(keras.optimizers.Adam(0.01), "mse")
        fit(model, None)
        base.layers[0].trainable = not freezes
        if compiles:
            with strategy.scope():
                model.compile(keras.optimizers.Adam(0.01), "mse")
        fit(model, x[:, 0] if weighs else None)
        assert [layer.trainable for layer in base.layers] == [not freezes, False]
        return model.get_weights()

    takeover = takeover_of(tmp_path)
    given: Any = {"x": x, "y": y, "batch_size": 16, "shuffle": False, "verbose": 0}
    expected = trained(lambda model, weights: model.fit(**given, sample_weight=weights))
    found = trained(lambda model, weights: takeover.fit(model, FitCall(**given, sample_weight=weights)))
    assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) < 1e-12
    assert ("counts from the next compile() on" in capsys.readouterr().out) is not (compiles or weighs)


SCALE = 1.0


class Scaled(keras.Model):
    """Its loss has numbers of Python, from where scripts keep them."""

    factor, pair = 1.0, (1.0, 2.0)

    def __init__(self):
        super().__init__()
        self.dense, self._weights = keras.layers.Dense(2), {"of": [1.0]}

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        scale = SCALE * self.factor * self._weights["of"][0] * getattr(self, "late", self.pair[0])
        return scale * keras.ops.mean(keras.ops.square(y - y_pred))


class ScaledInItsOwnStep(Scaled):
    def train_step(self, rows):
        return super().train_step(rows)


class Scales(keras.callbacks.Callback):
    """Sets them as each epoch begins."""

    def on_epoch_begin(self, epoch, logs=None):
        global SCALE  # noqa: PLW0603
        SCALE = 2.0 + epoch
        self.model.factor, self.model._weights = 0.5 + epoch, {"of": [0.4]}
        if epoch:
            self.model.late = 3.0
        self.model.pair = (1.5 + epoch, 2.0)


@pytest.mark.parametrize(("kind", "devices", "fits"), [(Scaled, 1, (3, 1, 2)), (ScaledInItsOwnStep, 2, (3, 1))])
def test_python_values_count_when_keras_traces_the_step(kind, devices, fits, float64, tmp_path, capsys):
    """Until compile(), here before several epochs; in a run that is resumed too, in which other epochs begin."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(16, 3)), rng.normal(size=(16, 2))

    def trained(devices, fit, *fits):
        global SCALE
        keras.utils.set_random_seed(5)
        model: Any = None
        SCALE, losses = 1.0, []
        for epochs in fits:
            with strategy_over(devices).scope():
                model = model or kind()
                if epochs > 1:
                    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), loss="mse")
            given: Any = {"x": x, "y": y, "batch_size": 8, "epochs": epochs, "shuffle": False, "verbose": 0}
            given["validation_data"] = (x[:8], y[:8]) if kind is Scaled else None
            losses += [values[-1] for values in fit(model, **given, callbacks=[Scales()]).history.values()]
            model.factor, model.optimizer.momentum = 7.0, 0.0
        return np.concatenate([losses, *(weights.ravel() for weights in model.get_weights())])

    def by_trainer(*fits):
        takeover = takeover_of(tmp_path, devices, seed=1)
        return trained(devices, lambda model, **given: takeover.fit(model, FitCall(**given)), *fits)

    by_trainer(2)
    found = by_trainer(*fits)
    said = capsys.readouterr().out
    assert f"{kind.__name__}.factor" in said
    assert "shows 0" not in said
    assert np.abs(found - trained(1, keras.Model.fit, *fits)).max() < 1e-12


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        (lambda model: setattr(model.layers[0], "trainable", False), "whether layers are trainable"),
        (lambda model: setattr(model, "optimizer", keras.optimizers.SGD(1.0)), "the model's optimizer"),
    ],
)
def test_what_slots_depend_on_is_not_set_as_training_begins(sets, named, tmp_path):
    """Keras would have it: it builds the optimizer with the first batch."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    callback = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: sets(model))
    with pytest.raises(ConfigError, match=f"a callback sets {named}"):
        takeover_of(tmp_path).fit(model, FitCall(x=np.ones((4, 3)), y=np.ones((4, 2)), callbacks=[callback]))


class Confusion(keras.metrics.Metric):
    """Counts that are read one by one."""

    def __init__(self, **more):
        super().__init__(**more)
        self.counts = self.add_weight(shape=(2, 2), initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        pair = [keras.ops.one_hot(keras.ops.cast(v[:, 0] > 0.5, "int32"), 2) for v in (y_true, y_pred)]
        self.counts.assign_add(keras.ops.matmul(keras.ops.transpose(pair[0]), pair[1]))

    def result(self):
        return keras.ops.trace(self.counts) / keras.ops.sum(self.counts)


class Twice(keras.Model):
    """Returns a number that is no metric."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**found, "twice": 2 * found["confusion"]}


@pytest.mark.parametrize("devices", [1, 2])
def test_metrics_can_be_asked_after_evaluate(devices, tmp_path, capsys):
    strategy = strategy_over(devices)
    with strategy.scope():
        inputs = keras.Input((1,))
        model = Twice(inputs, keras.layers.Lambda(lambda x: x)(inputs))
        confusion = Confusion(name="confusion")
        model.compile(loss="mse", metrics=[confusion])
    takeover = takeover_of(tmp_path, devices)
    x = np.array([[0.0], [1.0], [1.0], [0.0], [1.0]])
    y = np.array([[0.0], [1.0], [0.0], [1.0], [1.0]])
    for _ in range(2):
        values = takeover.evaluate(
            model,
            {"x": x, "y": y, "sample_weight": None, "batch_size": 2, "steps": None, "callbacks": None, "verbose": 0},
        )
        assert values["confusion"] == pytest.approx(0.6)
        assert confusion.counts.numpy().tolist() == [[1, 1], [1, 2]]
        assert float(confusion.result()) == pytest.approx(0.6)
    assert "'twice' of Twice.compute_metrics() is no metric of the model: it is left out" in capsys.readouterr().out
