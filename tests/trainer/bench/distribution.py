"""`make bench-distribution`: keras.distribution's DataParallel beside MultiWorkerMirrored, on two workers.

The same script runs with both, in turns. An epoch is timed in the script, without what is saved after it; the first one
compiles, and does not count. Ratios of CPU seconds hardly depend on what else the machine does, so they are judged
beside those of the clock: a bound is missed if both are below it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.trainer.harness import launcher

LEAST = 0.9
SIDES = ("mirrored", "divided")
SCRIPT = """
import json, sys, time
import keras
import numpy as np
from keras import layers

class Timer(keras.callbacks.Callback):
    found = []

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter(), time.process_time()

    def on_epoch_end(self, epoch, logs=None):
        self.found.append([time.perf_counter() - self.began[0], time.process_time() - self.began[1]])

def conv():
    model = keras.Sequential([keras.Input((28, 28, 1))])
    for filters in (16, 32, 64):
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(10))
    return model, random.normal(size=(ROWS, 28, 28, 1)).astype("float32"), random.integers(0, 10, ROWS)

def transformer():
    words = keras.Input((32,), dtype="int32")
    x = layers.Embedding(1000, 128)(words)
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32, flash_attention=False)(y, y, use_causal_mask=True)
        x = x + layers.Dense(128)(layers.Dense(512, "gelu")(layers.LayerNormalization()(x)))
    rows = random.integers(0, 1000, (ROWS, 33))
    return keras.Model(words, layers.Dense(1000)(x)), rows[:, :-1], rows[:, 1:]

random = np.random.default_rng(1)
STEPS, EPOCHS, BATCH = int(sys.argv[2]), int(sys.argv[3]), 32
ROWS = STEPS * BATCH
model, x, y = globals()[sys.argv[1]]()
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, callbacks=[Timer()], verbose=0)
print("seconds", json.dumps(Timer.found[1:]))
"""
DIVIDED = """
import keras
keras.distribution.set_distribution(keras.distribution.DataParallel())
"""


def seconds(side: str, model: str, steps: int, epochs: int) -> tuple[float, float]:
    """Seconds of a step in this model's epochs: the median by the clock, and of CPU time on both workers."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-distribution-") as folder,
        launcher(Path(folder), fresh=True) as launch,
    ):
        (Path(folder) / "train.py").write_text((DIVIDED if side == "divided" else "") + SCRIPT)
        config = {"entrypoint": "train.py", "seed": 1, "args": [model, str(steps), str(epochs)]}
        config |= {"output": {"directory": f"{folder}/output"}, "watchdog": {"startupSeconds": 1800}}
        env = {"TFGPU_GPUS": "1", "CUDA_VISIBLE_DEVICES": "-1", "TFGPU_CODE_DIR": folder}
        tasks = launch.start_workers(config, env=dict.fromkeys(range(2), env))
        for task in tasks:
            if task.wait(1800):
                sys.exit(task.log)
        lines = [line for task in tasks for line in task.log.splitlines() if line.startswith("seconds ")]
    found = [json.loads(line.removeprefix("seconds ")) for line in lines]
    clock = median(max(epoch[0] for epoch in of) for of in zip(*found, strict=True))
    cpu = median(sum(epoch[1] for epoch in of) for of in zip(*found, strict=True))
    return clock / steps, cpu / steps


def main() -> int:
    """Measure, and print one line of JSON; 0 if every bound may hold."""
    parser = argparse.ArgumentParser(prog="bench-distribution", description=__doc__)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--models", nargs="*", default=["conv", "transformer"])
    options = parser.parse_args()
    figures: dict[str, object] = {}
    ok = True
    for model in options.models:
        found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
        for turn in range(options.turns):
            for side in SIDES[:: -1 if turn % 2 else 1]:
                found[side].append(seconds(side, model, options.steps, options.epochs))
                print(model, side, found[side][-1], file=sys.stderr, flush=True)
        middle = {side: [median(numbers) for numbers in zip(*found[side], strict=True)] for side in SIDES}
        ratios = [a / b for a, b in zip(middle["mirrored"], middle["divided"], strict=True)]
        figures[f"{model}_vs_data_parallel"], figures[f"{model}_vs_data_parallel_cpu"] = (round(r, 3) for r in ratios)
        figures |= {f"{model}_{side}_ms": round(1000 * middle[side][0], 2) for side in SIDES}
        ok = ok and max(ratios) >= LEAST
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"name": "bench-distribution", "ok": ok, **figures, "cpus": os.cpu_count(), "load": load}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
