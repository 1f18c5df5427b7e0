"""Runs the scripts of examples/scripts one after the other, and writes down what each has found: one process for all.

GALLERY is the folder for that, GALLERY_SCRIPTS are names with commas between. With GALLERY_PLAIN it is plain Keras in
one process, in place of so many workers. Rows keep their order: plain Keras would draw another one than the trainer.
"""

import json
import os
import runpy
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf

SCRIPTS = Path(__file__).parents[2] / "examples/scripts"
model = SimpleNamespace(fit=keras.Model.fit)


class Alone(tf.distribute.OneDeviceStrategy):
    def __init__(self):
        super().__init__("/cpu:0")


def in_order(*args, **kwargs):
    return model.fit(*args, **{**kwargs, "shuffle": False})


keras.Model.fit = in_order
tf.data.Dataset.shuffle = lambda rows, *_, **__: rows
out = Path(os.environ["GALLERY"])
plain = int(os.environ.get("GALLERY_PLAIN", "0"))
if plain:
    workers = [f"localhost:{port}" for port in range(plain)]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}})
    tf.distribute.MultiWorkerMirroredStrategy = Alone
worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
for name in os.environ["GALLERY_SCRIPTS"].split(","):
    keras.utils.set_random_seed(7)
    found = runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    arrays = {f"weight {i}": array for i, array in enumerate(found["model"].get_weights())}
    arrays |= {name: np.asarray(values) for name, values in found["history"].history.items()}
    arrays |= {name: np.asarray(found[name]) for name in ("evaluated", "predicted") if name in found}
    np.savez(out / f"{name}-{worker}.npz", **arrays)
    print("ran", name, flush=True)
