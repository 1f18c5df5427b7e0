"""A script as people have it: builds, compiles and trains by itself. Also run by plain Keras, to compare with."""

import json
import os
import signal

import keras
import numpy as np

keras.config.set_floatx("float64")
keras.utils.set_random_seed(3)


class Misbehave(keras.callbacks.Callback):
    """At the end of epoch TEST_AT does what TEST_DO says: what happens to people's scripts from outside."""

    def on_epoch_end(self, epoch, logs=None):
        if str(epoch) == os.environ.get("TEST_AT"):
            os.kill(os.getppid(), {"kill": signal.SIGKILL, "term": signal.SIGTERM}[os.environ["TEST_DO"]])


class Measure(keras.callbacks.Callback):
    """Evaluates and predicts while the model trains."""

    def __init__(self, x, y):
        super().__init__()
        self.rows, self.measured = (x, y), []

    def on_epoch_end(self, epoch, logs=None):
        self.measured.append(self.model.evaluate(*self.rows, verbose=0))
        self.measured.append([float(self.model.predict(self.rows[0], verbose=0).max())])


def callbacks_of_the_first():
    """What people make in their first worker only."""
    index = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {}).get("index", 0)
    return [keras.callbacks.LambdaCallback()] if index == 0 else []


def main():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(203, 6))
    y = (x @ np.arange(18).reshape(6, 3)).argmax(1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, "tanh"),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        keras.optimizers.AdamW(0.05, global_clipnorm=0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    first = model.fit(
        x,
        y,
        batch_size=32,
        epochs=6,
        shuffle=False,
        validation_split=0.2,
        class_weight={0: 1.0, 1: 2.0, 2: 0.5},
        callbacks=[
            *callbacks_of_the_first(),
            keras.callbacks.CSVLogger("training.csv"),
            keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.2),
            keras.callbacks.EarlyStopping(patience=2, min_delta=0.2, restore_best_weights=True),
            Misbehave(),
        ],
    )
    measure = Measure(x[:30], y[:30])
    second = model.fit(
        x,
        y,
        batch_size=50,
        epochs=9,
        initial_epoch=6,
        shuffle=False,
        verbose=0,
        sample_weight=np.linspace(0, 1, len(x)),
        validation_data=(x[:20], y[:20].astype("int32")),
        callbacks=[measure, Misbehave()],
    )
    found = {
        "first": first.history,
        "epochs": [first.epoch, second.epoch],
        "second": second.history,
        "measured": measure.measured,
        "params": [first.params["verbose"] == "auto", second.params["verbose"]],
        "evaluated": model.evaluate(x, y, batch_size=64, return_dict=True),
        "predicted": float(np.abs(model.predict(x, verbose=0)).sum()),
        "one batch": model.predict_on_batch(x[:5]).tolist(),
        "rate": float(model.optimizer.learning_rate),
    }
    model.save("trained.keras")
    print("found", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
