"""What in-memory checkpoints and the ledger cost a run: with and without them by turns, in the same processes."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.trainer.harness import Launcher, free_ports

MODULE = Path(__file__).parent / "module"
WINDOW, WARM = 100, 200
ORDER = ("whole", "no copies", "no ledger", "no ledger", "no copies", "whole")
"""As module/turns.py has them, which imports TensorFlow."""
_NEVER = 1_000_000_000
_SECONDS_A_STEP = 0.1
"""At most, also on a busy machine."""


def measure(
    launch: Launcher, output: Path, *, workers: int, strategy: Mapping[str, str], turns: int
) -> Mapping[str, Any]:
    """The figures of one undisturbed run with this many workers."""
    steps = WARM + turns * len(ORDER) * WINDOW + 1
    config = {
        "entrypoint": "turns",
        "globalBatchSize": 64,
        "steps": steps,
        "seed": 7,
        "output": {"directory": str(output)},
        "checkpoint": {"everySteps": _NEVER},
        "logEverySeconds": 60,
    }
    env = {
        "TFGPU_CODE_DIR": str(MODULE),
        "TFGPU_JOB_UID": "turns",
        "TFGPU_PROGRESS_PORT": "0",
        "TFGPU_RECOVERY": "InPlace",
        "TFGPU_RECOVERY_BUDGET": "0",
        "TFGPU_RECOVERY_LEADER": f"127.0.0.1:{free_ports(1)[0]}",
        "TFGPU_RECOVERY_TOKEN": "turns",
        "TURNS": str(turns),
        **strategy,
    }
    if workers > 1:
        tasks = launch.start_workers(config, count=workers, env=dict.fromkeys(range(workers), env))
    else:
        tasks = [launch.start(config, env=env)]
    codes = [task.wait(steps * _SECONDS_A_STEP) for task in tasks]
    assert not any(codes), tasks[0].log + tasks[-1].log
    return figures([told(task.log) for task in tasks])


def told(log: str) -> dict[str, Any]:
    """What a worker says of its windows."""
    found = re.search(r"^turns (\{.*\})$", log, re.MULTILINE)
    assert found is not None, log
    record: dict[str, Any] = json.loads(found[1])
    return record


def figures(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """As they stand in the line of JSON. The time is the first worker's: in step, it is everybody's."""
    by_kind: dict[str, list[float]] = {kind: [] for kind in ORDER}
    seconds = workers[0]["seconds"]
    for turn in range(0, len(seconds), len(ORDER)):
        for kind, sums in by_kind.items():
            sums.append(sum(seconds[turn + i] for i, of in enumerate(ORDER) if of == kind))
    copies = [step for step in workers[0]["copies"] if step > WARM]
    copied = sum(workers[0]["copying"][-len(copies) :]) if copies else 0.0
    with_copies = sum(by_kind["whole"]) + sum(by_kind["no ledger"])
    turns = len(by_kind["whole"])
    return {
        "turns": turns,
        "step_ms": round(1000 * statistics.median(by_kind["no copies"]) / (2 * WINDOW), 3),
        "steps_between_copies": round(4 * WINDOW * turns / max(1, len(copies)), 1),
        "copy_ms": round(1000 * statistics.median(workers[0]["copying"]), 3),
        "copies_of_the_time": round(copied / with_copies, 4),
        "copies_together": all(worker["copies"] == workers[0]["copies"] for worker in workers),
        "copies_cost": cost(by_kind["whole"], by_kind["no copies"]),
        "ledger_cost": cost(by_kind["whole"], by_kind["no ledger"]),
    }


def cost(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """By how much `over` exceeds `under`: the median of the turns, with its 95 % interval, whatever their
    distribution."""
    ratios = sorted(a / b - 1 for a, b in zip(over, under, strict=True))
    away = 0.98 * math.sqrt(len(ratios))  # 1.96 standard deviations of how many are below the median
    low = max(0, math.floor((len(ratios) - 1) / 2 - away))
    high = min(len(ratios) - 1, math.ceil((len(ratios) - 1) / 2 + away))
    found = {"median": statistics.median(ratios), "low": ratios[low], "high": ratios[high]}
    return {name: round(value, 4) for name, value in found.items()}
