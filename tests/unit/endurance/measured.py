"""What an endurance run would have measured."""

from __future__ import annotations

from collections.abc import Callable

from tests.endurance.sampling import Key, Point
from tests.endurance.scenarios import BY_NAME

SCENARIO = BY_NAME["one-device"]
WORKER = "worker-0/tfgpujob_trainer.task"


def samples(**changes: Callable[[int], float]) -> dict[Key, list[Point]]:
    """A healthy run of this many seconds on two cores, 100 steps each; `changes` apply to the training process."""
    process: dict[str, Callable[[int], float]] = {
        "threads": lambda _: 20,
        "descriptors": lambda second: 10 + (second % 9 == 0),
        "sockets": lambda _: 3,
        "maps": lambda _: 900,
        "rss": lambda _: 600e6,
        "shared": lambda _: 0,
        "cpu": lambda second: 0.9 * second,
    }
    machine: dict[str, Callable[[int], float]] = {
        "busy": lambda second: second,
        "cores": lambda _: 2,
        "load": lambda _: 1.0,
    }
    values: dict[Key, Callable[[int], float]] = {
        **{("worker-0", name): value for name, value in process.items()},
        ("worker-0", "cpu"): lambda second: 0.05 * second,
        ("worker-0", "processes"): lambda _: 2,
        **{(WORKER, name): value for name, value in {**process, **changes}.items() if name not in machine},
        **{("machine", name): value for name, value in {**machine, **changes}.items() if name in machine},
        ("temporary files", "files"): lambda _: 4,
        ("temporary files", "bytes"): lambda _: 4096,
        ("shared memory", "files"): lambda _: 0,
        ("shared memory", "bytes"): lambda _: 0,
        ("log", "bytes"): lambda second: 2000 + 700 * second,
        ("tensorboard", "bytes"): lambda second: 2000 + 700 * second,
        ("tensorboard", "files"): lambda _: 4,
        ("checkpoints", "kept"): lambda second: 3 + (second % 2),
        ("checkpoints", "bytes"): lambda _: 30_000,
        ("output", "files"): lambda _: 40,
    }
    hundred: Callable[[int], float] = lambda second: 100 * second  # noqa: E731
    steps = changes.get("steps", hundred)
    return {
        key: [Point(second, int(steps(second)), value(second)) for second in range(300)]
        for key, value in values.items()
    }
