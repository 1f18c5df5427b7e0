"""The parts of the check that run jobs of the trainer, and the table of all parts."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.gpu import nvidia
from tests.gpu.part import Part
from tests.recovery.training import Found, Job, Shape, disturbed
from tests.trainer.harness import Task, free_ports, until

_MEMORY = 8192
"""MiB of a GPU, where there is none."""


def devices(part: Part) -> None:
    """The card and its driver; TensorFlow, its libraries, and whether they compute what they should."""
    for card, driver, memory in nvidia.query("name", "driver_version", "memory.total"):
        part.say(card=card, driver=driver, memoryMiB=int(memory))
    part.measure()


def _convnet(part: Part, output: str, **fields: Any) -> dict[str, Any]:
    params = {"rows": part.size(8192, 128), "filters": part.size(32, 4)}
    return part.config(
        output, **{"entrypoint": "convnet", "globalBatchSize": part.size(64, 16), "params": params, **fields}
    )


def _two_on_one_gpu() -> dict[str, str]:
    """The environment of a pod in which two workers share one GPU."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    return {
        "TFGPU_STRATEGY": "MultiWorkerMirrored",
        "TFGPU_GPUS": "1",
        "TFGPU_PROCESSES_PER_GPU": "2",
        "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}),
    }


def limits(part: Part) -> None:
    """gpu.memory of a job's spec against what nvidia-smi sees. Nothing else may use the GPU.

    A process needs memory beside its limit, for its CUDA context and libraries. The difference between two limits shows
    what the limit itself comes to.
    """
    total = nvidia.mib("memory.total") or _MEMORY
    steps = part.size(600, 3)
    growing = _peak(part, part.start(_convnet(part, "growth", steps=steps), TFGPU_GPU_MEMORY_GROWTH="true"))
    part.say(way="growth", smiMiB=growing)
    limited: dict[int, int] = {}
    for limit in (total // 8, total // 4):
        config = _convnet(part, f"limit-{limit}", steps=steps)
        limited[limit] = _peak(part, part.start(config, TFGPU_GPU_MEMORY_LIMIT_MIB=str(limit)))
        part.say(way="limit", limitMiB=limit, smiMiB=limited[limit])
    (less, low), (more, high) = limited.items()
    part.say(way="difference", overLimit=round((high - low) / (more - less), 4))
    task = part.start(_convnet(part, "too-large", steps=steps), TFGPU_GPU_MEMORY_LIMIT_MIB=str(100 * total))
    code = task.wait(part.left)
    part.say(way="too large", refused=code == 2, message=task.ended.get("message"))


def _peak(part: Part, task: Task) -> int:
    """The most MiB that a job uses, above what is used now, once it has succeeded."""
    before = most = nvidia.mib("memory.used")
    while task.process.poll() is None and part.left > 1:
        most = max(most, nvidia.mib("memory.used"))
        time.sleep(0.3)
    part.summary(task)
    return most - before


def processes(part: Part) -> None:
    """Rows a second of mode predict with 1, 2 and 4 processes on one GPU, without MPS and with it."""
    part.train(_convnet(part, "model", steps=2))
    rows = part.size(120_000, 512)
    for way, several in (("in turns", (1, 2, 4)), ("MPS", (1, 2, 4))):
        with ExitStack() as stack:
            env = stack.enter_context(nvidia.mps(part.launch.directory / "mps")) if way == "MPS" else {}
            if env is None:
                part.say(way=way, note="nvidia-cuda-mps-control is not on this machine")
                continue
            for count in part.size(several, several[:2]):
                rate = _predicted(part, f"{way}-{count}", count, rows, env)
                part.say(way=way, processes=count, rowsPerSecond=round(rate))


def _predicted(part: Part, output: str, count: int, rows: int, env: Mapping[str, str]) -> float:
    """Rows a second of all processes together."""
    predict = {"model": str(part.launch.directory / "model/model.keras"), "partRows": rows // 16}
    params = {"rows": 8 * rows}  # an eighth of them is predicted
    config = _convnet(part, output, mode="predict", predict=predict, params=params, globalBatchSize=part.size(256, 16))
    shared = {"TFGPU_STRATEGY": "Custom", "TFGPU_GPUS": "1", "TFGPU_PROCESSES_PER_GPU": str(count)}
    part.train(config, **shared, TFGPU_REPLICAS="1", **env)
    reports = list((part.launch.directory / output / "predictions").glob("run*.json"))
    assert len(reports) == count, f"{len(reports)} of {count} processes have predicted"
    return sum(float(json.loads(report.read_text())["summary"]["examplesPerSecond"]) for report in reports)


def workers(part: Part) -> None:
    """Two workers on one GPU: the loss of each model beside one worker's."""
    small: dict[str, Any] = {"globalBatchSize": 64, "steps": part.size(40, 4), "params": {"rows": part.size(1024, 128)}}
    for model, config in {
        "convnet": partial(_convnet, part, epochs=1),
        "transformer": partial(part.config, entrypoint="transformer", **small),
        "wide_and_deep": partial(part.config, entrypoint="wide_and_deep", **small),
    }.items():
        tasks = part.start(config(f"{model}-1")), part.start(config(f"{model}-2"), **_two_on_one_gpu())
        one, two = (_loss(part.summary(task)) for task in tasks)
        part.say(model=model, loss=[one, two], lossApart=abs(two - one) / abs(one))


def _loss(summary: Mapping[str, Any]) -> float:
    loss: float = summary["splits"]["train"]["loss"]
    return loss


def nccl(part: Part) -> None:
    """NCCL asked for by two pods with one GPU between them, which it can't do: each ends, and says why."""
    config = _convnet(part, "nccl", epochs=1, communication="NCCL")
    tasks = part.launch.start_workers(config, env=dict.fromkeys(range(2), part.device))
    for number, task in enumerate(tasks):
        code = task.wait(part.left)
        message = str(task.ended.get("message"))
        part.say(worker=number, refused=code != 0 and "NCCL" in message, code=code, message=message)


def resume(part: Part) -> None:
    """With deterministic operations: trained twice, and stopped by SIGTERM and resumed, to the same bits."""
    fields = {"deterministic": True, "epochs": 12, "checkpoint": {"everySteps": part.size(50, 5)}}
    whole, again, cut = (part.start(_convnet(part, name, **fields)) for name in ("whole", "again", "cut"))
    checkpoints = part.launch.directory / "cut/checkpoints"
    until(lambda: any(checkpoints.glob("step-*/COMMIT")) or cut.process.poll() is not None, part.left)
    cut.process.send_signal(signal.SIGTERM)
    cut.wait(part.left)
    stopped = cut.ended.get("message")
    rest = part.start(_convnet(part, "cut", **fields))
    first, second, third = (part.summary(task)["weightsSha256"] for task in (whole, again, rest))
    part.say(repeated=first == second, resumed=first == third, stopped=stopped)


def parity(part: Part) -> None:
    """The loss of two epochs on the GPU beside the CPU's, from the same weights and rows in the same order."""
    params = {"rows": part.size(1024, 128), "filters": part.size(32, 4), "noise": 2.0}
    config = partial(_convnet, part, epochs=2, params=params)
    on_cpu = part.start(config("cpu"), CUDA_VISIBLE_DEVICES="-1", TFGPU_GPUS="0")
    ways = {
        "TF32": part.start(config("tf32")),
        "float32": part.start(config("float32"), NVIDIA_TF32_OVERRIDE="0"),
        "float32, jit: none": part.start(config("jit", jit="none"), NVIDIA_TF32_OVERRIDE="0"),
    }
    expected = _loss(part.summary(on_cpu))
    for way, task in ways.items():
        part.say(way=way, lossApart=abs(_loss(part.summary(task)) - expected) / expected)


def kill(part: Part) -> None:
    """SIGKILL of a training process with a CUDA context: seconds to the next step, at the worst."""
    model: dict[str, Any] = part.size({"entrypoint": "convnet"}, {})
    kills = part.size(3, 1)
    for count, strategy in ((1, {}), (2, _two_on_one_gpu())):
        shape, output = Shape(strategy={**part.device, **strategy}), part.launch.directory / f"kill-{count}"
        job = Job(part.launch, output, shape, steps=260 * kills, in_place=True, **model)
        found = Found()
        disturbed(job, found, times=kills, chance=random.Random(1), in_place=True)
        part.say(workers=count, seconds=round(max(found.seconds), 2), each=[round(each, 2) for each in found.seconds])


@dataclass(frozen=True)
class Kind:
    """A part: what it runs, and for how long at the most on a GPU."""

    run: Callable[[Part], None]
    seconds: float
    alone: bool = True
    """It measures time or memory. Others run beside each other."""


PARTS = {
    "devices": Kind(devices, 90),
    "products": Kind(Part.measure, 60),
    "loop": Kind(Part.measure, 240),
    "precision": Kind(Part.measure, 300),
    "saved": Kind(Part.measure, 120),
    "kill": Kind(kill, 150),
    "limits": Kind(limits, 150),
    "processes": Kind(processes, 240),
    "workers": Kind(workers, 240, alone=False),
    "nccl": Kind(nccl, 60, alone=False),
    "resume": Kind(resume, 120, alone=False),
    "parity": Kind(parity, 120, alone=False),
}
"""In the order in which they are run."""
