"""A job that is valid and large, and whose pods say what is hard to search."""

from __future__ import annotations

from tests.harness import sizes
from tests.harness.scenario import NAMESPACE, Do, Step, created, job, story, training
from tests.harness.scenarios.common import FAILED, FOREVER, submit

ENTRIES, REPLICAS = 600, 8
SAID = ("mlock" * 819)[:4096]
"""What held the operator for 3.4 s (N1)."""


def _says(name: str, code: int, message: str) -> Do:
    return lambda world: world.kubelet.finish(world.server.get("Pod", NAMESPACE, name), code, message)


LARGE = job("train", run_policy={"backoffLimit": 0})
LARGE["spec"]["replicaSpecs"] = {"worker": {"replicas": REPLICAS, "template": sizes.TEMPLATES["env"](ENTRIES)}}

SIZES = (
    story(
        "large",
        submit(LARGE),
        Step(created("train", REPLICAS), lambda _: None),
        Step(training("train"), _says("train-worker-1", 200, SAID)),
        ends=FOREVER,
        phases=FAILED,
        schedulable_gpus=REPLICAS,
    ),
)
