"""`make parity`: every technique that SUPPORT calls exact, over 100 steps, against plain Keras in float64.

Prints what it does on standard error and one line of JSON on standard output; exits 1 when not ok.
    python -m tests.trainer.parity           Mirrored 2, MultiWorkerMirrored 2 and 4, resize 2 → 4 → 1
    python -m tests.trainer.parity worker …  one worker of these, started by the above
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.trainer.cases import (
    ACCUMULATED,
    CASES,
    CE,
    MICRO_BATCHES,
    PER_MICRO_BATCH,
    PLAIN,
    ROWS,
    SETTINGS,
    adamw,
    blocks,
    dense,
    labels,
    rows,
)
from tests.trainer.harness import free_ports
from tests.trainer.inprocess import WORKERS, train_here, weights_of
from tests.trainer.reference import train_in_micro_batches, train_plainly, use_float

from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.model.loss import stop_keras_scaling_by_replicas

EPOCHS, BATCH, SEED = 15, 16, 1
STEPS_PER_EPOCH = 7
TOLERANCE = 1e-10
RESIZED = "global_clipnorm"
"""The case that continues with other numbers of workers."""
DEADLINE_SECONDS = 900

Weights = dict[str, list[np.ndarray]]


def main() -> int:
    """Run everything and print the verdict."""
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(sys.stderr):
        directory = Path(name)
        pair = start_workers(2, directory, until=2 * STEPS_PER_EPOCH + 3)
        expected = {case: plain(case) for case in CASES}
        say("plain Keras done")
        differences = {"Mirrored 2": compare(run_cases(2), expected, replicas=2)}
        recomputed = recompute_equals_none(2)
        say("Mirrored 2 done")
        finish(pair)
        say("MultiWorkerMirrored 2 done")
        finish(start_workers(4, directory, until=7 * STEPS_PER_EPOCH + 1))
        say("MultiWorkerMirrored 4 done")
        for count in (2, 4):
            found = load(directory / f"workers{count}.npz")
            differences[f"MultiWorkerMirrored {count}"] = compare(found, expected, replicas=count)
        resized = {RESIZED: weights_of(train_case(RESIZED, 1, output=directory / "resized"))}
        differences["resized 2 → 4 → 1"] = compare(resized, expected, replicas=1)
        extras = [json.loads((directory / f"workers{count}.json").read_text()) for count in (2, 4)]
    worst = max(max(cases.values()) for cases in differences.values())
    report = {
        "name": "parity",
        "ok": worst < TOLERANCE
        and recomputed
        and all(e["bit_equal_resume"] and e["fp16_overflow_skipped"] for e in extras),
        "max_abs_diff_float64": worst,
        "steps": EPOCHS * STEPS_PER_EPOCH,
        "cases": sum(len(cases) for cases in differences.values()),
        "worst_by_strategy": {strategy: max(cases.values()) for strategy, cases in differences.items()},
        "recompute_bit_equal": recomputed,
        "bit_equal_resume": all(e["bit_equal_resume"] for e in extras),
        "fp16_overflow_skipped_on_all": all(e["fp16_overflow_skipped"] for e in extras),
    }
    for strategy, cases in differences.items():
        for case, value in cases.items():
            if value >= TOLERANCE:
                say(f"NOT EQUAL: {case} under {strategy} differs by {value:.3g}")
    print(json.dumps(report), flush=True)
    return 0 if report["ok"] else 1


def plain(case: str) -> list[np.ndarray]:
    """Plain Keras on one device."""
    make_model, make_data = CASES[case]
    keras.utils.clear_session()
    keras.utils.set_random_seed(SEED)
    return train_plainly(make_model(), *make_data(), epochs=EPOCHS, batch=BATCH, seed=SEED, **PLAIN.get(case, {}))


def in_micro_batches(case: str, replicas: int) -> list[np.ndarray]:
    """Plain Keras on one device with the micro-batches of this many replicas."""
    make_model, make_data = CASES[case]
    keras.utils.clear_session()
    keras.utils.set_random_seed(SEED)
    plan = Schedule(rows=ROWS, global_batch_size=BATCH, replicas=replicas, seed=SEED, accumulate=MICRO_BATCHES)
    return train_in_micro_batches(make_model(), make_data(), plan, epochs=EPOCHS)


def train_case(case: str, devices: int, **more: Any) -> Any:
    """One case through the trainer."""
    make_model, make_data = CASES[case]
    keras.utils.clear_session()
    keras.utils.set_random_seed(SEED)
    fields = {"epochs": EPOCHS, **SETTINGS.get(case, {}), **more}
    return train_here(make_model, make_data(), devices=devices, batch=BATCH, seed=SEED, **fields)


def run_cases(devices: int) -> Weights:
    """All cases, and those that accumulate also in micro-batches."""
    accumulated = [*((f"accumulated {case}", case) for case in ACCUMULATED), *PER_MICRO_BATCH.items()]
    return {
        **{case: weights_of(train_case(case, devices)) for case in CASES},
        **{name: weights_of(train_case(case, devices, accumulate=MICRO_BATCHES)) for name, case in accumulated},
    }


def recompute_equals_none(devices: int) -> bool:
    """Blocks with Dropout and BatchNormalization, in micro-batches, recomputed and not: the same bits."""

    def run(**more: Any) -> list[np.ndarray]:
        keras.utils.clear_session()
        keras.utils.set_random_seed(SEED)
        done = train_here(
            lambda: blocks(dropout=0.3, batch_norm=True),
            (rows(6), labels()),
            devices=devices,
            batch=BATCH,
            seed=SEED,
            epochs=EPOCHS,
            accumulate=2,
            **more,
        )
        return weights_of(done)

    return all((a == b).all() for a, b in zip(run(recompute=["block_*"]), run(), strict=True))


def bit_equal_resume(directory: Path) -> bool:
    """A model with Dropout, in one go and with a stop in the middle."""

    def make_model() -> Any:
        net = dense(adamw(global_clipnorm=0.1))
        net = keras.Sequential([*net.layers[:1], keras.layers.Dropout(0.3), *net.layers[1:]])
        net.compile(adamw(global_clipnorm=0.1), CE(from_logits=True))
        return net

    def run(name: str, **more: Any) -> list[np.ndarray]:
        keras.utils.clear_session()
        keras.utils.set_random_seed(SEED)
        fields = {"epochs": 4, **more}
        done = train_here(
            make_model, (rows(6), labels()), devices=WORKERS, batch=BATCH, seed=SEED, output=directory / name, **fields
        )
        return weights_of(done)

    whole = run("whole")
    run("halves", epochs=None, steps=12)
    return all((a == b).all() for a, b in zip(run("halves"), whole, strict=True))


def fp16_overflow_skipped() -> bool:
    """One row that overflows float16, on one replica: every worker skips, the weights stay finite."""
    use_float("float32")
    x = rows(6).astype("float32")
    x[3] = 1e5
    done = train_here(
        lambda: dense(adamw(global_clipnorm=1.0)),
        (x, labels()),
        devices=WORKERS,
        epochs=2,
        batch=ROWS,
        seed=SEED,
        precision="mixed_float16",
    )
    return done.skipped_in_all == 2 and all(np.isfinite(w).all() for w in weights_of(done))


def worker(count: int, index: int, directory: Path, until: int) -> None:
    """One of `count` workers: all cases, the part of the resized run up to step `until`, and the rest."""
    weights = run_cases(WORKERS)
    train_case(RESIZED, WORKERS, output=directory / "resized", epochs=None, steps=until)
    extras = {
        "bit_equal_resume": bit_equal_resume(directory / f"resume{count}"),
        "fp16_overflow_skipped": fp16_overflow_skipped(),
    }
    if index == 0:
        arrays = {f"{case}/{i:02d}": w for case, ws in weights.items() for i, w in enumerate(ws)}
        np.savez(directory / f"workers{count}.npz", **arrays)
        (directory / f"workers{count}.json").write_text(json.dumps(extras))


def start_workers(count: int, directory: Path, until: int) -> list[subprocess.Popen[bytes]]:
    """Start `count` workers."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    started = []
    for index in range(count):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        log = (directory / f"workers{count}-{index}.log").open("wb")
        command = [sys.executable, "-m", "tests.trainer.parity", "worker", *map(str, (count, index, directory, until))]
        environment = {**os.environ, "TF_CONFIG": json.dumps(config), "TF_NUM_INTRAOP_THREADS": "1"}
        started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        log.close()
    return started


def finish(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for workers that must all succeed."""
    try:
        for process in processes:
            if process.wait(DEADLINE_SECONDS) != 0:
                raise SystemExit(f"a worker ended with {process.returncode}: {process.args!r}")
    finally:
        for process in processes:
            process.kill()


def load(path: Path) -> Weights:
    """What the first worker left."""
    result: Weights = {}
    with np.load(path) as arrays:
        for name in sorted(arrays.files):
            result.setdefault(name.rpartition("/")[0], []).append(arrays[name])
    return result


def compare(found: Weights, expected: Weights, *, replicas: int) -> dict[str, float]:
    """The largest absolute difference of any weight in each case, which ran on this many replicas."""
    differences = {}
    for name, weights in found.items():
        micro = PER_MICRO_BATCH.get(name)
        wanted = in_micro_batches(micro, replicas) if micro else expected[name.removeprefix("accumulated ")]
        differences[name] = max(float(np.abs(a - b).max()) for a, b in zip(weights, wanted, strict=True))
    return differences


def say(message: str) -> None:
    """One line for people."""
    print(f"parity: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    stop_keras_scaling_by_replicas()
    use_float("float64")
    devices = 1 if sys.argv[1:2] == ["worker"] else 2
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    if devices == 1:
        worker(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
        os._exit(0)
    sys.exit(main())
