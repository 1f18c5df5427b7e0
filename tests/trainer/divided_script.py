"""A plain script that divides its model over MESH, or not at all without it. In the first round, ENDS is `kill` or
`stop` in epoch 3, or `late`: killed once EarlyStopping has stopped the training.
"""

import json
import os
import signal
from pathlib import Path

import keras
import numpy as np
from keras import layers
from keras.distribution import DeviceMesh, LayoutMap, ModelParallel, set_distribution


class End(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch == 2 and batch == 1 and os.environ["ENDS"] != "late":
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGTERM}[os.environ["ENDS"]])

    def on_train_end(self, logs=None):
        if os.environ["ENDS"] == "late":
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch


keras.config.set_floatx("float64")
keras.utils.set_random_seed(3)
if "MESH" in os.environ:
    layout = LayoutMap(DeviceMesh(json.loads(os.environ["MESH"]), ("batch", "model")))
    layout[".*wide/kernel"] = (None, "model")
    layout[".*wide/bias"] = ("model",)
    layout[".*narrow/kernel"] = ("model", None)
    set_distribution(ModelParallel(layout_map=layout, batch_dim_name="batch"))

random = np.random.default_rng(0)
x, y = random.normal(size=(72, 8)), random.integers(0, 4, 72)
model = keras.Sequential(
    [
        layers.Dense(16, "relu", name="wide"),
        layers.Dropout(0.2),
        layers.Dense(8, name="narrow"),
        layers.BatchNormalization(),
        layers.Dense(4),
    ]
)
model.compile(
    keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
ends = [End()] if "ENDS" in os.environ and "TFGPU_ROUND" not in os.environ else []
plateau = keras.callbacks.ReduceLROnPlateau(min_delta=10, patience=1, factor=0.5)  # better only after the first epoch
stopping = keras.callbacks.EarlyStopping("loss", min_delta=10, patience=3, restore_best_weights=True)
called_back = [plateau, stopping, keras.callbacks.CSVLogger("log.csv"), *ends]
history = model.fit(
    x, y, batch_size=16, epochs=6, shuffle=False, validation_split=0.1, callbacks=called_back, verbose=0
)
found = {"rows": len(Path("log.csv").read_text().splitlines())}
found |= {"history": history.history, "evaluated": model.evaluate(x, y, verbose=0)}
found["predicted"] = model.predict(x, verbose=0).tolist()
model.save("divided.keras")
print("found", json.dumps(found))
