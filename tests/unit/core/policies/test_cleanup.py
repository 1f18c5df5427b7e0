"""What goes when a job is over."""

from __future__ import annotations

from itertools import product

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.api import CleanPodPolicy
from tfgpujob.core.policies.cleanup import pods_to_clean

PODS = {
    "chief, through": make.pod("train-chief-0", exit=0),
    "worker, through": make.pod("train-worker-0", exit=0),
    "worker, failed": make.pod("train-worker-1", exit=1),
    "worker, running": make.pod("train-worker-2"),
    "worker, through, its proxy runs": make.pod("train-worker-4", exit=0, phase="Running", lingers=True),
    "worker, going": make.pod("train-worker-3", deleting=True),
    "ps, running": make.pod("train-ps-0"),
    "ps, through": make.pod("train-ps-1", exit=0),
    "evaluator, through": make.pod("train-evaluator-0", exit=0),
}
RUNNING = {"worker, running", "worker, through, its proxy runs", "ps, running"}
GOES = {
    "Auto": RUNNING | {"ps, through", "evaluator, through"},
    "None": set(),
    "Running": RUNNING,
    "All": set(PODS) - {"worker, going"},
}


@pytest.mark.parametrize("policy", CleanPodPolicy)
def test_what_goes(policy: CleanPodPolicy) -> None:
    gone = pods_to_clean(policy, tuple(PODS.values()))
    assert {name for name, pod in PODS.items() if pod in gone} == GOES[policy]


@pytest.mark.parametrize(("policy", "ends"), list(product(CleanPodPolicy, ["Succeeded", "Failed"])))
def test_it_goes_once_with_the_last_write(policy: CleanPodPolicy, ends: str) -> None:
    world = World.running(make.job("ParameterServer", worker=1, ps=1, evaluator=1, run={"cleanPodPolicy": str(policy)}))
    world.exits("train-evaluator-0", 0)
    world.advance(minutes=1)
    world.exits("train-chief-0", 0 if ends == "Succeeded" else 1)
    assert world.phase == ends
    writes = len(world.writes)
    left = {
        "Auto": ["train-chief-0"],
        "None": ["train-chief-0", "train-evaluator-0", "train-ps-0", "train-worker-0"],
        "Running": ["train-chief-0", "train-evaluator-0"],
        "All": [],
    }
    assert world.pods == left[policy]
    world.advance(hours=1)
    assert len(world.writes) == writes
    active = {role: counts["active"] for role, counts in world.status["replicaStatuses"].items()}
    running = 1 if policy is CleanPodPolicy.NONE else 0
    assert active == {"chief": 0, "worker": running, "ps": running, "evaluator": 0}


@pytest.mark.parametrize("policy", ["Auto", "Running"])
@pytest.mark.parametrize("code", [0, 1])
def test_f2_a_pod_whose_second_container_never_ends_frees_its_gpus(policy: str, code: int) -> None:
    world = World.running(make.job(worker=1, run={"cleanPodPolicy": policy}))
    world.lingers("train-worker-0", code)
    assert world.phase == ("Failed" if code else "Succeeded")
    assert world.pods == []
    assert world.status["gpuTime"]["gpus"] == 0
    counts = world.status["replicaStatuses"]["worker"]
    assert (counts["succeeded"], counts["active"]) == (1 - code, 0)


def test_the_service_stays_until_the_job_goes() -> None:
    world = World.running(make.job(worker=1, run={"cleanPodPolicy": "All"}))
    world.exits("train-worker-0", 0)
    assert [kind for kind, _ in world.objects] == ["Service"]
