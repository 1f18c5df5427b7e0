"""`python -m tfgpujob_trainer.gpu_doctor`: whether this pod's GPUs compute, in some ten seconds.

`tfgpu doctor --gpu` creates such a pod. The result is printed as a line of JSON and written to the pod's termination
message. The exit code is 0 if jobs can run on the GPUs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_contract.strategies import Strategy
from tfgpujob_trainer.cluster.devices import prepare_devices
from tfgpujob_trainer.cluster.gpus import driver_cuda
from tfgpujob_trainer.cluster.strategy import NCCL, build_strategy
from tfgpujob_trainer.contract import environment
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError, Outcome
from tfgpujob_trainer.supervise.pod_end import write_termination_log

_LEAST_FREE = 0.9
"""Share of a GPU's memory that must be free before this process uses it."""
_NODE = "see the node's kernel log for Xid errors, and try another node"


def main() -> int:
    """Run the checks; returns the exit code."""
    found: dict[str, Any] = {"problems": []}
    outcome = Outcome(code=0, cause="Completed", message="the GPUs compute", summary=found)
    try:
        _look(found, environment.read(os.environ))
    except ConfigError as error:
        found["problems"].append({"what": str(error), "fix": error.fix, "stops": True})
        outcome = replace(error.outcome(), summary=found)
    write_termination_log(outcome, ())
    print(json.dumps(found), flush=True)
    return int(outcome.code)


def _look(found: dict[str, Any], env: Environment) -> None:
    """Put the results into `found`. Raises ConfigError for the first problem that stops jobs."""
    if (cuda := driver_cuda()) is None:
        fix = "install it on the node, with the container runtime that shows it to pods, perhaps by a RuntimeClass"
        raise ConfigError("the pod sees no NVIDIA driver: libcuda.so.1 is not there, or finds no GPU", fix)
    built = tf.sysconfig.get_build_info().get("cuda_version")
    driver, cards = ".".join(map(str, cuda)), [*_cards()]
    found |= {"gpus": cards, "driverCuda": driver, "tensorflow": tf.__version__, "tensorflowCuda": built}
    for card in cards:
        if card["freeMiB"] < _LEAST_FREE * card["memoryMiB"]:
            what = f"of {card['memoryMiB']} MiB of {card['name']} {card['freeMiB']} are free, and this pod uses none"
            found["problems"].append({"what": what, "fix": "nvidia-smi on the node says what does", "stops": False})
    if built is None:
        raise ConfigError("TensorFlow in this image is built without CUDA", "use the trainer's image for GPUs")
    if cuda[0] < int(built.partition(".")[0]):
        what = f"the node's driver is for CUDA {driver} at the most, and TensorFlow is built for {built}"
        raise ConfigError(what, "update the node's driver")
    devices = prepare_devices(env)
    for device in devices:
        _must(f"a matrix product on {device}", partial(multiplies, device))
    if len(devices) > 1:
        _must(f"a sum over {len(devices)} GPUs by NCCL", partial(adds_up, devices, env))
        found["nccl"] = True


def _must(what: str, right: Callable[[], bool]) -> None:
    """Raise ConfigError unless a computation has the right result."""
    try:
        wrong = "" if right() else "has a wrong result"
    except Exception as error:  # noqa: BLE001 - whatever it is, people want to read it
        wrong = f"fails: {str(error).strip().partition(chr(10))[0][:300]}"
    if wrong:
        raise ConfigError(f"{what} {wrong}", _NODE)


def _cards() -> Iterator[dict[str, Any]]:
    """nvidia-smi's report on each GPU; nothing without it."""
    fields = "name,driver_version,memory.total,memory.free"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return
    for name, driver, total, free in (line.split(", ") for line in said.splitlines()):
        yield {"name": name, "driver": driver, "memoryMiB": int(total), "freeMiB": int(free)}


def multiplies(device: str) -> bool:
    """True if a matrix product is right. Its numbers are small integers, exact in each precision."""
    numbers = np.arange(512 * 512).reshape(512, 512)
    with tf.device(device):
        product = tf.matmul((numbers % 7).astype("float32"), (numbers % 5).astype("float32")).numpy()
    return bool((product == (numbers % 7) @ (numbers % 5)).all())


def adds_up(devices: Sequence[str], env: Environment) -> bool:
    """True if an all-reduce over the devices is right, by NCCL if they are GPUs."""
    strategy = build_strategy(replace(env, strategy=Strategy.MIRRORED, gpus=len(devices)), devices, NCCL)

    def replica() -> Any:
        context = tf.distribute.get_replica_context()
        own = tf.fill([1 << 20], tf.cast(context.replica_id_in_sync_group + 1, tf.float32))
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

    sums = strategy.experimental_local_results(tf.function(lambda: strategy.run(replica))())
    return all(bool((each.numpy() == sum(range(len(devices) + 1))).all()) for each in sums)


if __name__ == "__main__":
    sys.exit(main())
