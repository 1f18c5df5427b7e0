"""What is measured inside a process with TensorFlow: `python -m tests.gpu.measures NAME full|quick`."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.gpu.report import Line
from tests.trainer.bench import trials
from tests.trainer.bench.__main__ import paired
from tests.trainer.bench.trials import Trial

from tfgpujob_trainer.cluster.devices import leave_threads_for_reading, prepare_devices
from tfgpujob_trainer.cluster.strategy import build_strategy
from tfgpujob_trainer.contract import environment
from tfgpujob_trainer.contract.entrypoint import Entrypoint, load
from tfgpujob_trainer.model.loss import stop_keras_scaling_by_replicas
from tfgpujob_trainer.step.jit import remember_auto

_SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "convnet": ({"rows": 8192}, {"rows": 64, "filters": 4}),
    "transformer": (
        {"rows": 2048, "length": 256, "width": 512, "heads": 8, "blocks": 6},
        {"rows": 64, "length": 8, "width": 8, "heads": 2, "blocks": 1},
    ),
    "resnet50": ({"rows": 512}, {}),
}
"""Params of each built-in: full, quick."""
_BATCHES = {"convnet": 64, "transformer": 64, "resnet50": 128}
_QUICK_BATCH = 8


def devices(_quick: bool) -> Iterator[Line]:
    """Which GPUs TensorFlow sees, which libraries it computes with, and whether what they compute is right."""
    found = tf.config.list_physical_devices("GPU")
    built = tf.sysconfig.get_build_info()
    a, b, x = (np.random.default_rng(i).standard_normal((256, 256)).astype("float32") for i in range(3))
    pictures, kernel = x.reshape(16, 16, 16, 16), a[:3, : 3 * 16].reshape(3, 3, 16, 1)
    with tf.device("/GPU:0" if found else "/CPU:0"):
        tf.config.experimental.enable_tensor_float_32_execution(False)
        product, convolution = tf.matmul(a, b).numpy(), tf.nn.conv2d(pictures, kernel, 1, "VALID").numpy()
    windows = np.lib.stride_tricks.sliding_window_view(pictures.astype("float64"), (3, 3), (1, 2))
    maps = Path("/proc/self/maps").read_text().splitlines()
    yield {
        "tensorflow": tf.__version__,
        "cuda": built.get("cuda_version"),
        "cudnn": built.get("cudnn_version"),
        "gpus": [tf.config.experimental.get_device_details(one) for one in found],
        "count": len(found),
        "productError": _apart(product, a.astype("float64") @ b),
        "convolutionError": _apart(convolution, np.einsum("nhwcij,ijco->nhwo", windows, kernel)),
        "libraries": sorted({m.split()[-1] for m in maps if any(lib in m for lib in ("/libcu", "/libnccl", "/libnv"))}),
    }


def _apart(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def products(quick: bool) -> Iterator[Line]:
    """TFLOP/s of square matrix products."""
    n, repeats = (256, 3) if quick else (8192, 20)
    _strategy()

    @tf.function
    def repeated(a: Any, b: Any) -> Any:
        for _ in range(repeats):
            a = tf.matmul(a, b) * tf.cast(0.01, a.dtype)
        return tf.reduce_sum(tf.cast(a[:1, :1], "float32"))

    for name, dtype in {"bfloat16": "bfloat16", "float16": "float16", "TF32": "float32", "float32": "float32"}.items():
        tf.config.experimental.enable_tensor_float_32_execution(name == "TF32")
        a, b = (tf.cast(tf.random.normal((n, n)), dtype) for _ in range(2))
        repeated(a, b).numpy()
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            repeated(a, b).numpy()
            seconds.append(time.perf_counter() - began)
        yield {"type": name, "n": n, "teraflops": round(2 * n**3 * repeats / sorted(seconds)[1] / 1e12, 2)}


@cache
def _strategy() -> tf.distribute.Strategy:
    """Over the first GPU, or the CPU, as the trainer prepares it for a pod with this environment."""
    env = environment.read(os.environ)
    leave_threads_for_reading(2)
    keras.utils.set_random_seed(7)
    stop_keras_scaling_by_replicas()
    remember_auto()
    return build_strategy(env, prepare_devices(env))


def _synchronized(trial: Trial) -> Trial:
    """The same, until the GPU has done it all."""

    def steps(count: int) -> float:
        began = time.perf_counter()
        trial(count)
        tf.test.experimental.sync_devices()
        return time.perf_counter() - began

    return steps


def _builtin(name: str, quick: bool) -> tuple[Entrypoint, int]:
    """A built-in, and its batch."""
    entrypoint = load(name, _SIZES[name][quick], Path(os.devnull))
    return entrypoint, _QUICK_BATCH if quick else _BATCHES[name]


def _fit(make: Callable[[], keras.Model], rows: Any, batch: int, jit: bool | str) -> Trial:
    """Steps of Keras' fit(), without its beginning."""
    net = make()
    net.compile(net.optimizer, net.loss, metrics=["accuracy"], jit_compile=jit)
    dataset = tf.data.Dataset.from_tensor_slices(rows).shuffle(len(rows[0])).repeat()
    dataset = dataset.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    class AfterTheFirst(keras.callbacks.Callback):
        began = 0.0

        def on_train_batch_end(self, index: int, logs: Any = None) -> None:
            if index == 0:
                tf.test.experimental.sync_devices()
                self.began = time.perf_counter()

    def steps(count: int) -> float:
        clock = AfterTheFirst()
        net.fit(dataset, steps_per_epoch=count + 1, callbacks=[clock], verbose=0)
        tf.test.experimental.sync_devices()
        return time.perf_counter() - clock.began

    return steps


_PAIRS = (
    ("as it is", "by hand"),
    ("as it is", "by hand, XLA"),
    ("as it is", "fit(), jit_compile='auto'"),
    ("jit: none", "by hand"),
    ("jit: none", "fit(), jit_compile=False"),
)


def loop(quick: bool) -> Iterator[Line]:
    """Our loop, one written by hand, and Keras' fit(), in turns in one process: ratios of their speeds."""
    for model, precision, many in (("convnet", "float32", 200), ("transformer", "mixed_bfloat16", 15)):
        keras.config.set_dtype_policy(precision)
        entrypoint, batch = _builtin(model, quick)
        data = entrypoint.model, entrypoint.data("train"), batch
        ours = partial(trials.trainers, *data, _strategy(), precision=precision)
        found: dict[str, Trial] = {
            "as it is": _synchronized(ours()),
            "jit: none": _synchronized(ours(jit="none")),
            "by hand": _synchronized(trials.hand_written(*data, _strategy())),
            "by hand, XLA": _synchronized(trials.hand_written(*data, _strategy(), jit=True)),
            "fit(), jit_compile=False": _fit(*data, False),
            "fit(), jit_compile='auto'": _fit(*data, "auto"),
        }
        steps = 2 if quick else many
        seconds = trials.in_turns(found, 2 if quick else 6, steps, epoch=steps)
        yield from (
            {"model": model, "precision": precision, "ours": name, "msPerStep": round(1e3 * median(times) / steps, 3)}
            for name, times in seconds.items()
            if name in found
        )
        for name, other in _PAIRS:
            ratio = paired(name, seconds[other], seconds[name])
            figures = {key: round(getattr(ratio, key), 4) for key in ("ratio", "low", "high")}
            yield {"model": model, "precision": precision, "ours": name, "over": other, **figures}


def _speed(make: Callable[[], keras.Model], rows: Any, batch: int, *, quick: bool, **fields: Any) -> Line:
    """Speed of our loop with these fields of spec.trainer, and the peak memory of TensorFlow."""
    strategy, gpus = _strategy(), tf.config.list_logical_devices("GPU")
    keras.config.set_dtype_policy(fields.get("precision", "float32"))
    gc.collect()
    before = tf.config.experimental.get_memory_info("GPU:0")["current"] if gpus else 0
    if gpus:
        tf.config.experimental.reset_memory_stats("GPU:0")
    trial = _synchronized(trials.trainers(make, rows, batch, strategy, **fields))
    trial(3)
    steps = 2 if quick else 15
    rate = steps / min(trial(steps) for _ in range(3))
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] - before if gpus else 0
    return {"stepsPerSecond": round(rate, 2), "peakMiB": peak >> 20}


def precision(quick: bool) -> Iterator[Line]:
    """float32 with and without TensorFloat-32, bfloat16 and float16."""
    small = (("transformer", "replica"), ("transformer", "none"))
    for model, jit in small if quick else (*small, ("resnet50", "replica")):
        entrypoint, batch = _builtin(model, quick)
        rows, tf32 = entrypoint.data("train"), 0.0
        for kind in ("TF32", "float32", "mixed_bfloat16", "mixed_float16"):
            tf.config.experimental.enable_tensor_float_32_execution(kind != "float32")
            policy = kind if kind.startswith("mixed") else "float32"
            found = _speed(entrypoint.model, rows, batch, quick=quick, precision=policy, jit=jit)
            tf32 = tf32 or found["stepsPerSecond"]
            over = round(found["stepsPerSecond"] / tf32, 3)
            yield {"model": model, "jit": jit, "precision": kind, **found, "overTf32": over}


def saved(quick: bool) -> Iterator[Line]:
    """What accumulation and recomputation save of memory, and what they cost."""
    batch = 16 if quick else 1024
    rows = trials.arrays((128, 64), batch)
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "accumulate": {"accumulate": 4},
        "recompute": {"recompute": ["block*"]},
    }
    for way, fields in ways.items():
        yield {"way": way, **_speed(partial(trials.wide_model, 2 if quick else 12), rows, batch, quick=quick, **fields)}


MEASURES = {"devices": devices, "products": products, "loop": loop, "precision": precision, "saved": saved}


def main() -> None:
    """Print the results; what the trainer prints goes to standard error."""
    name, size = sys.argv[1:]
    out, sys.stdout = sys.stdout, sys.stderr
    for line in MEASURES[name](size == "quick"):
        print(json.dumps(line), file=out, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
