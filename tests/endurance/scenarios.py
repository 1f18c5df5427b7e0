"""What is run: every strategy and every source of data. A scenario is a job; its bounds are what it may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.endurance.bounds import AtMost, Bound, Flat, PerStep, Rate, WarmUp

MIB = 1 << 20

ROWS = 6400
BATCH = 64
STEPS_PER_EPOCH = ROWS // BATCH
KEEP = 3
"""Checkpoints."""
POOLED = 8
"""Threads. TensorFlow's and gRPC's pools add one when all are at work at the same time, and keep it."""
PREDICTED = 2_000_000
"""Rows of mode predict, and how many a batch and a part have."""
PREDICT_BATCH, PART_ROWS = 4, 2000


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job of the trainer."""

    name: str
    strategy: str = "OneDevice"
    replicas: Mapping[str, int] = field(default_factory=lambda: {"worker": 1})
    devices: int = 1
    """Devices of each worker: under Mirrored, replicas."""
    kind: str = "arrays"
    """Kind of data; see module/small.py."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of spec.trainer, in addition to those of all scenarios."""
    every: int = 50
    """Steps from one checkpoint to the next, and from one evaluation to the next."""
    entrypoint: str = "small"
    in_place: bool = False
    """Recovers in place: with a warm process beside each that trains, and in-memory checkpoints."""
    elastic: bool = False
    """Its workers may join and leave: the chief looks for more of them all the time, or a worker that predicts takes
    the part that was taken the fewest times."""
    program: str = ""
    """One of examples/, in the place of the trainer, under tfgpu-supervise."""
    steps_per_epoch: int = STEPS_PER_EPOCH

    @property
    def is_script(self) -> bool:
        """Whether it says itself what is trained, for how long."""
        return self.entrypoint.endswith(".py")

    @property
    def predicts(self) -> bool:
        """Whether it computes predictions; a step is a batch then."""
        return self.config.get("mode") == "predict"

    @property
    def warm_up(self) -> WarmUp:
        """Until all that happens now and then has happened: its threads and files are there."""
        return WarmUp(steps=max(100, 2 * self.every))

    @property
    def processes(self) -> int:
        """How many training processes it has."""
        return sum(self.replicas.values())

    @property
    def steps_by(self) -> str:
        """The task that says how many steps are done."""
        return "chief-0" if "chief" in self.replicas else "worker-0"


TWO_WORKERS = {"worker": 2}
SERVERS = {"ps": 1, "worker": 2, "chief": 1}
PREDICT = {
    "mode": "predict",
    "predict": {"partRows": PART_ROWS},
    "globalBatchSize": PREDICT_BATCH,
}

SCENARIOS = (
    Scenario(name="multi-worker", strategy="MultiWorkerMirrored", replicas=TWO_WORKERS),
    Scenario(name="multi-worker-busy", strategy="MultiWorkerMirrored", replicas=TWO_WORKERS, every=10),
    Scenario(
        name="multi-worker-float16",
        strategy="MultiWorkerMirrored",
        replicas=TWO_WORKERS,
        config={"accumulate": 4, "allReduce": "float16"},
    ),
    Scenario(
        name="multi-worker-evaluator",
        strategy="MultiWorkerMirrored",
        replicas={"worker": 2, "evaluator": 1},
        every=200,
    ),
    Scenario(name="parameter-server", strategy="ParameterServer", replicas=SERVERS),
    Scenario(name="parameter-server-busy", strategy="ParameterServer", replicas=SERVERS, every=20),
    Scenario(name="parameter-server-in-place", strategy="ParameterServer", replicas=SERVERS, in_place=True),
    Scenario(name="parameter-server-elastic", strategy="ParameterServer", replicas=SERVERS, elastic=True),
    Scenario(name="multi-worker-in-place", strategy="MultiWorkerMirrored", replicas=TWO_WORKERS, in_place=True),
    Scenario(name="multi-worker-script", strategy="MultiWorkerMirrored", replicas=TWO_WORKERS, entrypoint="script.py"),
    Scenario(name="multi-worker-own-step", strategy="MultiWorkerMirrored", replicas=TWO_WORKERS, entrypoint="own_step"),
    Scenario(
        name="multi-worker-own-program",
        strategy="MultiWorkerMirrored",
        replicas=TWO_WORKERS,
        program="own_loop.py",
        every=100,
        in_place=True,
    ),
    Scenario(name="mirrored", strategy="Mirrored", devices=2),
    Scenario(name="one-device", config={"best": {"monitor": "accuracy", "mode": "max", "restore": False}}),
    Scenario(name="one-device-in-place", in_place=True),
    Scenario(name="one-device-busy", every=10, config={"accumulate": 4}),
    Scenario(name="mixed-float16", config={"precision": "mixed_float16"}),
    Scenario(name="csv", kind="csv"),
    Scenario(name="images", kind="images", steps_per_epoch=128 // BATCH),
    Scenario(name="tfrecord", kind="tfrecord"),
    Scenario(name="tfrecord-disk", kind="tfrecord", config={"data": {"cache": "disk"}}),
    Scenario(name="dataset", kind="dataset"),
    Scenario(name="dataset-memory", kind="dataset", config={"data": {"cache": "memory"}}),
    Scenario(name="generator", kind="generator", config={"data": {"stepsPerEpoch": STEPS_PER_EPOCH}}),
    Scenario(name="predict", config=PREDICT),
    Scenario(name="predict-devices", strategy="Mirrored", devices=2, config=PREDICT),
    Scenario(name="predict-elastic", strategy="Custom", replicas=TWO_WORKERS, config=PREDICT, elastic=True),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long a run is decides how small a leak it can show."""

    warm_up: WarmUp
    evaluator_warm_up: WarmUp
    rss_slack: float
    rss_ratio: float
    cpu_ratio: float | None
    """None: too short to say anything about speed."""


LONG = Length(
    warm_up=WarmUp(seconds=60, share=0.1, steps=100),
    evaluator_warm_up=WarmUp(seconds=60, share=0.1, steps=100),
    rss_slack=4 * MIB,
    rss_ratio=1.02,
    cpu_ratio=1.1,
)
SHORT = Length(
    warm_up=WarmUp(share=0.1, steps=100),
    evaluator_warm_up=WarmUp(share=0.5),
    rss_slack=8 * MIB,
    rss_ratio=1.02,
    cpu_ratio=None,
)


def of_process(name: str, scenario: Scenario, length: Length) -> dict[str, Bound]:
    """What a process named so, of a task or below it, may hold."""
    counted, grown = scenario.warm_up, length.warm_up
    if name.startswith("evaluator"):
        # It begins when the first checkpoints are there, and takes one a second, however many steps that is.
        counted, grown = WarmUp(share=0.2, steps=counted.steps), length.evaluator_warm_up
    bounds: dict[str, Bound] = {
        "threads": Flat(warm_up=counted, slack=POOLED),
        "descriptors": Flat(warm_up=counted),
        "sockets": Flat(warm_up=counted),
        "maps": Flat(warm_up=grown, ratio=1.02, slack=16),
        "rss": Flat(warm_up=grown, ratio=length.rss_ratio, slack=length.rss_slack, unit="bytes"),
        "shared": Flat(warm_up=grown, slack=MIB, unit="bytes"),
    }
    if "/" not in name:
        bounds["processes"] = Flat(warm_up=counted)
    # A supervisor and an evaluator look now and then, however many steps there were; a warm process only waits.
    elif length.cpu_ratio is not None and not name.startswith("evaluator") and not name.endswith(".warm"):
        bounds["cpu"] = PerStep(ratio=length.cpu_ratio, warm_up=length.warm_up)
    return bounds


def of_job(scenario: Scenario, *, log_every: int) -> dict[tuple[str, str], Bound]:
    """What the files of a job may hold."""
    counted = scenario.warm_up
    bounds: dict[tuple[str, str], Bound] = {
        ("temporary files", "files"): Flat(warm_up=counted),
        ("temporary files", "bytes"): Flat(warm_up=counted, slack=MIB, unit="bytes"),
        ("shared memory", "files"): Flat(warm_up=counted),
        ("shared memory", "bytes"): Flat(warm_up=counted, slack=MIB, unit="bytes"),
    }
    each_interval = 1000 / log_every
    if scenario.predicts:
        parts = PREDICT_BATCH / PART_ROWS
        bounds[("log", "bytes")] = Rate(why="a line each interval", base=10_000, per_second=each_interval, unit="bytes")
        # What the others do is not among the steps; where they share the parts, a file says that one is taken.
        others = 2 * (scenario.processes - 1)
        files = 2 if scenario.elastic else 1
        # How many steps are done is known once an interval, in which hundreds of thousands of rows are predicted.
        bounds[("predictions", "files")] = Rate(
            why="a file for each part", base=100, per_step=(1.1 + others) * files * parts
        )
        return bounds
    lines = 1000 / scenario.steps_per_epoch + 200 / scenario.every
    if "evaluator" in scenario.replicas:
        each_interval += 300
    checkpoints: Bound = Flat(warm_up=WarmUp(steps=scenario.every * (KEEP + 2)), ratio=1.02, slack=4096)
    if scenario.is_script:
        checkpoints = Rate(
            why="the History that fit() returns, of each epoch",
            base=20_000,
            per_step=(KEEP + 1) * 150 / scenario.steps_per_epoch,
            unit="bytes",
        )
    scalars = 1000 / scenario.steps_per_epoch + 400 / scenario.every
    return {
        **bounds,
        ("log", "bytes"): Rate(
            why="a line each interval and epoch, and one for each evaluation",
            base=20_000,
            per_step=lines,
            per_second=each_interval,
            unit="bytes",
        ),
        ("tensorboard", "bytes"): Rate(
            why="scalars of each interval, epoch and evaluation",
            base=20_000,
            per_step=scalars,
            per_second=1000 / log_every,
            unit="bytes",
        ),
        # A folder and a file for each split.
        ("tensorboard", "files"): AtMost(4),
        # The newest may be written while the oldest of those kept is still there.
        ("checkpoints", "kept"): AtMost(KEEP + 1),
        ("checkpoints", "bytes"): checkpoints,
        ("output", "files"): AtMost(60),
    }
