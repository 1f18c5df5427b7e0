"""Runs the scripts of examples/scripts one after the other, and records their results: one process for all.

GALLERY is the folder for that, GALLERY_SCRIPTS are names with commas between. With GALLERY_PLAIN plain Keras runs in
one process, instead of this many workers. GALLERY_ENDS names a fit() of each script, as JSON, in whose middle the
script is broken off, and the process is killed after them all. With GALLERY_KILLS the last worker is killed there
instead. Rows keep their order: plain Keras would draw another one than the trainer.
"""

import importlib
import json
import os
import runpy
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

SCRIPTS = Path(__file__).parents[2] / "examples/scripts"
model = SimpleNamespace(fit=keras.Model.fit, fits=0)


class Alone(tf.distribute.OneDeviceStrategy):
    def __init__(self, *_, **__):
        super().__init__("/cpu:0")


class BrokenOffError(Exception):
    """In the place of a kill: what the script has made so far is gone, and its checkpoints are there."""


def in_order(*args, **kwargs):
    model.fits += 1
    return model.fit(*args, **{**kwargs, "shuffle": False})


def break_off():
    raise BrokenOffError


def kill():
    if worker == last:
        os.kill(os.getpid(), signal.SIGKILL)


def end_in_the_middle(end):
    """Let the trainer's loops call `end` one step or more after a checkpoint of that fit() was published."""
    for name_of_loop in ("train.loop", "parameter_server.loop"):
        # Plain Keras is to do without it.
        loop: Any = importlib.import_module(f"tfgpujob_trainer.{name_of_loop}")
        loop.after_step = ending(loop.after_step, end)


def ending(after_step, end):
    def ended(run, batch, position, **more):
        done = after_step(run, batch, position, **more)
        half = run.total_steps // 4 * 2  # the checkpoints are of even steps
        if model.fits == ends[name]:
            if position.step == half:
                run.checkpoints.wait()
            if position.step > half:
                end()
        return done

    return ended


def write(found):
    """Weights, history, and what else the script has found."""
    arrays = {f"weight {i}": array for i, array in enumerate(found["model"].get_weights())}
    arrays |= {name: np.asarray(values) for name, values in found["history"].history.items()}
    arrays |= {name: np.asarray(found[name]) for name in ("evaluated", "predicted") if name in found}
    np.savez(out / f"{name}-{worker}.npz", **arrays)


def of_float64(layer, *args, **kwargs):
    """Keras keeps LoRA adapters in float32 whatever the policy: too coarse to measure how exact they are."""
    if kwargs.get("dtype") == "float32":
        kwargs["dtype"] = keras.config.floatx()
    return add_weight(layer, *args, **kwargs)


keras.Model.fit = in_order
add_weight, keras.layers.Layer.add_weight = keras.layers.Layer.add_weight, of_float64
tf.data.Dataset.shuffle = lambda rows, *_, **__: rows
out = Path(os.environ["GALLERY"])
plain = int(os.environ.get("GALLERY_PLAIN", "0"))
if plain:
    workers = [f"localhost:{port}" for port in range(plain)]
    cluster = {"chief": ["localhost:8"], "ps": ["localhost:9"], "worker": workers}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    for strategy in ("MirroredStrategy", "MultiWorkerMirroredStrategy", "ParameterServerStrategy"):
        setattr(tf.distribute, strategy, Alone)
ends = json.loads(os.environ.get("GALLERY_ENDS", "{}"))
kills = "GALLERY_KILLS" in os.environ
os.chdir(out)
tf_config = json.loads(os.environ["TF_CONFIG"])
worker, last = tf_config["task"]["index"], len(tf_config["cluster"]["worker"]) - 1
if ends:
    end_in_the_middle(kill if kills else break_off)
for name in os.environ["GALLERY_SCRIPTS"].split(","):
    keras.utils.clear_session()  # names such as auc_1 count from the beginning, as in a process of its own
    keras.utils.set_random_seed(7)
    model.fits = 0
    print("script", name, flush=True)
    try:
        write(runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__"))
    except BrokenOffError:
        print("broke off", name, flush=True)
if ends:
    os.kill(os.getpid(), signal.SIGKILL)
