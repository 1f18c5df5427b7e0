"""One case in a process of its own: `python -m tests.trainer.bench.cases NAME ROUNDS STEPS`.

Prints one line of JSON: the seconds of each round, by what was timed; or the MiB of memory.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tests.trainer.bench import scripts, trials

from tfgpujob_trainer.cluster.devices import leave_threads_for_reading
from tfgpujob_trainer.model.loss import stop_keras_scaling_by_replicas

_READS = 8


def main() -> None:
    """Run the case; what the trainer prints goes to standard error."""
    name, rounds, steps = sys.argv[1:]
    out = sys.stdout
    sys.stdout = sys.stderr
    print(json.dumps(CASES[name](int(rounds), int(steps))), file=out, flush=True)
    os._exit(0)


def strategies(devices: int = 1, reads: int = 2) -> Any:
    """The strategy of TF_CONFIG, or one over that many logical devices of this machine."""
    leave_threads_for_reading(reads)
    stop_keras_scaling_by_replicas()
    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    if devices > 1:
        return tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(devices)])
    return tf.distribute.OneDeviceStrategy("/cpu:0")


def against_hand_written(devices: int) -> Callable[[int, int], Any]:
    """The trainer's loop and a hand-written one, on the same convolutional network, in turns in one process."""

    def case(rounds: int, steps: int) -> Any:
        strategy, epoch = strategies(devices), 32
        data = trials.arrays(trials.SMALL, 64 * epoch)
        return trials.in_turns(
            {
                "hand": trials.hand_written(trials.conv_model, data, 64, strategy),
                "trainer": trials.trainers(trials.conv_model, data, 64, strategy),
            },
            rounds,
            steps,
            epoch=epoch,
        )

    return case


def against_copies(
    make: Callable[[], Any], shape: tuple[int, ...], batch: int, *, by_hand: bool = False, **fields: Any
) -> Callable[[int, int], Any]:
    """Workers on one global batch, by the trainer's loop and by a hand-written one, and the same processes each with a
    copy and a batch of its own."""

    def case(rounds: int, steps: int) -> Any:
        together, epoch = strategies(), 8
        alone = tf.distribute.OneDeviceStrategy("/cpu:0")
        whole = batch * together.num_replicas_in_sync
        data = trials.arrays(shape, whole * epoch)
        mine = tuple(part[: batch * epoch] for part in data)
        found = {
            "copy": trials.trainers(make, mine, batch, alone, **fields),
            "trainer": trials.trainers(make, data, whole, together, **fields),
        }
        if by_hand:
            found["hand"] = trials.hand_written(make, data, whole, together)
        return trials.in_turns(found, rounds, steps, epoch=epoch)

    return case


def settings_compared(**settings: Any) -> Callable[[int, int], Any]:
    """The wide model with these fields, and without them."""

    def case(rounds: int, steps: int) -> Any:
        strategy, epoch = strategies(), 4
        data = trials.arrays((128, 64), 64 * epoch)
        return trials.in_turns(
            {
                "without": trials.trainers(trials.wide_model, data, 64, strategy),
                "with": trials.trainers(trials.wide_model, data, 64, strategy, **settings),
            },
            rounds,
            steps,
            epoch=epoch,
        )

    return case


def half_all_reduce(rounds: int, steps: int) -> Any:
    """Two workers that send 2.4 million gradients a step, as float16 and as they are."""
    strategy, epoch = strategies(), 32
    data = trials.arrays((256,), 64 * epoch)
    return trials.in_turns(
        {
            "exact": trials.trainers(trials.dense_model, data, 64, strategy),
            "half": trials.trainers(trials.dense_model, data, 64, strategy, allReduce="float16"),
        },
        rounds,
        steps,
        epoch=epoch,
    )


def memory_of(**settings: Any) -> Callable[[int, int], Any]:
    """MiB that the steps of the wide model need above what the process had before the first."""

    def case(_rounds: int, steps: int) -> Any:
        strategy = strategies()
        trial = trials.trainers(trials.wide_model, trials.arrays((128, 64), 256), 64, strategy, **settings)
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
        trial(max(3, steps))
        return {"mib": [_status("VmHWM") - before]}

    return case


def slow_input(rounds: int, steps: int) -> Any:
    """Records of which some take several steps' time to parse, and arrays in memory."""
    strategy, epoch = strategies(reads=_READS), 8
    x, y = trials.arrays(trials.LARGE, 64 * epoch)
    pictures = x.astype("uint8")
    file = str(Path(tempfile.mkdtemp(prefix="bench-trainer-")) / "rows")
    with tf.io.TFRecordWriter(file) as writer:
        for number, (row, label) in enumerate(zip(pictures, y, strict=True)):
            writer.write(row.tobytes() + bytes([label, number % 16 == 0]))

    def slow() -> int:
        time.sleep(0.064)  # 256 ms a batch, several steps' time
        return 0

    def parse(record: Any) -> Any:
        numbers = tf.io.decode_raw(record, tf.uint8)
        size = pictures[0].size
        row = tf.cast(tf.reshape(numbers[:size], trials.LARGE), tf.float32)
        waited = tf.cond(
            numbers[size + 1] == 1, lambda: tf.py_function(slow, [], tf.int64), lambda: tf.constant(0, tf.int64)
        )
        return row, tf.ensure_shape(tf.cast(numbers[size], tf.int64) + waited, [])

    declared = {"tfrecord": file, "parse": parse}
    reads = {"parallelReads": _READS}
    return trials.in_turns(
        {
            "memory": trials.trainers(trials.deep_model, (pictures.astype("float32"), y), 64, strategy, data=reads),
            "slow": trials.trainers(trials.deep_model, declared, 64, strategy, data=reads),
        },
        rounds,
        steps,
        epoch=epoch,
    )


def _status(field: str) -> float:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field))
    return int(line.split()[1]) / 1024


CASES: dict[str, Callable[[int, int], Any]] = {
    "one_device": against_hand_written(1),
    "mirrored": against_hand_written(2),
    "multi_worker_mirrored": against_hand_written(1),
    "conv_copies": against_copies(trials.deep_model, trials.LARGE, 64, by_hand=True),
    "dense_copies": against_copies(trials.dense_model, (256,), 512, accumulate=16),
    "half_all_reduce": half_all_reduce,
    "accumulation": settings_compared(accumulate=8),
    "accumulation_memory": memory_of(accumulate=8),
    "recompute": settings_compared(recompute=["block*"]),
    "recompute_memory": memory_of(recompute=["block*"]),
    "plain_memory": memory_of(),
    "slow_input": slow_input,
    **{f"script_{kind}": scripts.script(kind, strategies) for kind in scripts.KINDS},
}

if __name__ == "__main__":
    main()
