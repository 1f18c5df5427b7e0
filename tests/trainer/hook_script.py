"""Classes of which each public method says when it is called, in a fit(), an evaluate() and a predict() of a script.

HOOKS are methods of keras.Model, each of which one model overrides; FOUND is where the names are written of all methods
that were called, such as `Metric.result`. What is called while the model is made, compiled and saved is not counted.
"""

import functools
import inspect
import os

import keras
import numpy as np

called: set[str] = set()
counts: list[bool] = []


def noting(base, only=None):
    """A subclass of `base` whose public methods note that they are called, or `only` one of them."""

    def noted(name, method):
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            if counts:
                called.add(f"{KINDS[base]}.{name}")
            return getattr(super(made, self), name)(*args, **kwargs)

        def build(self, input_shape):  # whose arguments Keras looks at
            return call(self, input_shape)

        return build if name == "build" and base is Scaled else call

    methods = {}
    for name in dir(base):
        method = inspect.getattr_static(base, name)
        if not name.startswith("_") and inspect.isfunction(method) and only in (None, name):
            methods[name] = noted(name, method)
    made = type(base.__name__, (base,), methods)
    return made


class Scaled(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.factor

    def compute_output_shape(self, shape):
        return shape


class Errors(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="errors")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(keras.ops.abs(y_true - y_pred)))

    def result(self):
        return self.total


KINDS = {
    keras.Model: "Model",
    keras.optimizers.SGD: "Optimizer",
    keras.callbacks.Callback: "Callback",
    Errors: "Metric",
    Scaled: "Layer",
}


def use(hook):
    """One fit(), evaluate() and predict() of a model that overrides this method."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    model = noting(keras.Model, hook)(inputs, keras.layers.Dense(2)(noting(Scaled)()(inputs)))
    model.compile(noting(keras.optimizers.SGD)(0.1), "mse", metrics=[noting(Errors)()])
    counts.append(True)
    model.fit(
        x,
        y,
        batch_size=4,
        epochs=2,
        shuffle=False,
        validation_data=(x, y),
        callbacks=[noting(keras.callbacks.Callback)()],
        verbose=0,
    )
    model.evaluate(x, y, batch_size=4, verbose=0, callbacks=[noting(keras.callbacks.Callback)()])
    model.predict(x, batch_size=4, verbose=0, callbacks=[noting(keras.callbacks.Callback)()])
    counts.clear()


x, y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
for hook in os.environ["HOOKS"].split(","):
    print("hook", hook, flush=True)
    use(hook)
    np.savez(os.environ["FOUND"], called=sorted(called))
