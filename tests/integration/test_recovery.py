"""Real training that loses a task, and pods that lose their node. All jobs run at the same time.

The cluster has two nodes, and the second one goes as by a power cut. The operator stays on the first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from localcluster.layout import ClusterError
from localcluster.release import NAMESPACE
from tests.integration.conftest import new_workspace
from tests.integration.installed import Installation
from tests.integration.kube import Kube, Object
from tests.integration.target import Target
from tests.integration.training import (
    NOBODY,
    RESUMED,
    SERVED_STEPS,
    STEPS,
    STEPS_AN_EPOCH,
    account,
    digests,
    enough,
    kill_process,
    log,
    new_trainer,
    serve,
    steps_done,
    summary,
    train,
)
from tests.integration.workspace import RUN_ON, Workspace

pytestmark = pytest.mark.serial
FIRST, SECOND = "0", "1"
FORCE_AFTER = 3
"""spec.runPolicy.forceDeleteAfterSeconds of the jobs that lose their node; the default is 60."""


@dataclass
class Disaster:
    """What ran when the second node went, and what the clock said."""

    workspace: Workspace
    stays: str
    """The node that is left."""
    goes: str
    before: dict[str, dict[str, str]] = field(default_factory=dict)
    """uids of the pods of each job when the node went."""
    seconds: dict[str, float] = field(default_factory=dict)
    """From the power cut until …"""


@pytest.fixture(scope="module")
def disaster(kube: Kube, target: Target, operator: Installation, request: pytest.FixtureRequest) -> Iterator[Disaster]:
    """All jobs of this module, submitted together, and what becomes of two that train when the node goes."""
    if len(target.cluster.nodes) < 2:
        pytest.skip("this cluster has no second node")
    with new_workspace(kube, target, operator) as workspace:
        stays, goes = target.cluster.nodes[0], target.cluster.nodes[-1]
        found = Disaster(workspace, stays, goes)
        for name, victim in (("undisturbed", NOBODY), ("first", FIRST), ("second", SECOND)):
            train(workspace, name, _on(stays), victim=victim, suspend=name == "second")
        placed = {"chief": _on(stays), "ps": _on(stays), "worker": _apart("servers")}
        serve(workspace, "servers", placed, forceDeleteAfterSeconds=FORCE_AFTER)
        if kube.has_gpus():
            _share_a_gpu(workspace, stays)
        for job in (_custom(workspace, stays), _deleted(workspace, goes)):
            workspace.submit(job)
        for name in ("alone", "deleted"):
            workspace.wait_for(name, "Running")
        workspace.edit("second", runPolicy={"suspend": False})
        # Last, since it would be done before the others are ready.
        workspace.eventually(lambda: steps_done(workspace, "servers-chief-0"), "servers trains")
        train(workspace, "moved", _apart("moved"), forceDeleteAfterSeconds=FORCE_AFTER)
        workspace.eventually(lambda: steps_done(workspace, "moved-worker-0") > STEPS // 4, "moved trains")
        names = ("moved", "alone", "servers", "deleted")
        found.before = {name: workspace.uids(name) for name in names}
        for name in ("moved", "servers"):
            assert goes in {pod["spec"]["nodeName"] for pod in workspace.pods(name).values()}
        cut = time.monotonic()
        try:
            target.cluster.stop_node(goes)
        except ClusterError as error:
            pytest.skip(error.problem)
        try:
            workspace.delete("deleted")
            workspace.submit(_deleted(workspace, stays))
            _clock(found, cut)
            yield found
        finally:
            target.cluster.start_node(goes)
            told = ", ".join(f"{what} after {seconds:.1f} s" for what, seconds in found.seconds.items())
            with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                print(f"\na node was lost: {told}")


def _clock(found: Disaster, cut: float) -> None:
    """Waits until both trainings continue, and records the time of each stage."""
    workspace = found.workspace
    of_gang = {
        "the operator says so": lambda: workspace.status("moved")["attempt"] == 2,
        "the stuck pod is gone": lambda: found.before["moved"].items().isdisjoint(workspace.uids("moved").items()),
        "all pods are ready": lambda: workspace.condition("moved", "Running").get("status") == "True",
        "the training goes on": lambda: steps_done(workspace, "moved-worker-0") > 0,
    }
    of_servers = {
        "the chief of the parameter servers starts again": lambda: (
            workspace.uids("servers").get("servers-chief-0") != found.before["servers"]["servers-chief-0"]
        ),
        "their training goes on": lambda: steps_done(workspace, "servers-chief-0") > 0,
    }
    stages: list[list[tuple[str, Callable[[], bool]]]] = [list(of_gang.items()), list(of_servers.items())]

    def all_reached() -> bool:
        for waiting in stages:
            if waiting and waiting[0][1]():
                what, _ = waiting.pop(0)
                found.seconds[what] = time.monotonic() - cut
        return not any(stages)

    workspace.eventually(all_reached, "both trainings go on", seconds=180)


def _on(node: str) -> Object:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def _apart(name: str) -> Object:
    """Workers on different nodes, as long as there are two."""
    term = {
        "labelSelector": {"matchLabels": {"tfgpu.dev/job-name": name, "tfgpu.dev/replica-type": "worker"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    return {"affinity": {"podAntiAffinity": preferred}}


def _programs(workspace: Workspace, name: str, strategy: str, placed: Mapping[str, Object], **policy: Any) -> Object:
    """A job of programs that run on; `placed` has the pod fields and numbers of each role."""
    job = workspace.new_job(name, RUN_ON, strategy=strategy, roles={}, runPolicy=policy)
    template = workspace.new_job(name, RUN_ON)["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    for role, fields in placed.items():
        replicas = {"replicas": 2} if role == "worker" else {}
        job["spec"]["replicaSpecs"][role] = {**replicas, "template": {"spec": {**template, **fields}}}
    return job


def _custom(workspace: Workspace, stays: str) -> Object:
    placed = {"chief": _on(stays), "worker": _apart("alone")}
    return _programs(workspace, "alone", "Custom", placed, restartScope="Replica", forceDeleteAfterSeconds=FORCE_AFTER)


def _share_a_gpu(workspace: Workspace, stays: str) -> None:
    """The undisturbed job once more, its two workers as two processes of one pod."""
    job = new_trainer(workspace, "shared", {"worker": {"replicas": 1, "pod": _on(stays)}}, steps=STEPS)
    job["spec"]["gpu"] = {"perReplica": 1, "processesPerGpu": 2, "memory": {"growth": True}}
    workspace.submit(job)


def _deleted(workspace: Workspace, node: str) -> Object:
    return _programs(
        workspace, "deleted", "MultiWorkerMirrored", {"worker": _on(node)}, forceDeleteAfterSeconds=FORCE_AFTER
    )


@pytest.mark.parametrize(("name", "victim"), [("first", FIRST), ("second", SECOND)])
def test_a_killed_task_costs_one_restart_and_not_one_bit(disaster: Disaster, name: str, victim: str) -> None:
    """kill -9 of either task, between two checkpoints: the gang resumes, and ends with an undisturbed run's weights."""
    workspace = disaster.workspace
    for job in (name, "undisturbed"):
        assert workspace.finished(job, seconds=180) == "Succeeded", workspace.describe()
    status = workspace.status(name)
    assert (status["attempt"], status["restarts"], status.get("disruptions", 0)) == (2, 1, 0)
    failure = status["lastFailure"]
    assert (failure["role"], failure["index"], failure["cause"]) == ("worker", int(victim), "Killed")
    resumed = re.search(r"resuming after step (\d+)", log(workspace, f"{name}-worker-0"))
    assert resumed
    assert int(resumed[1]) in {30, 40}
    assert workspace.status("undisturbed")["attempt"] == 1
    assert len(digests(workspace, "undisturbed")) == 1
    assert digests(workspace, name) == digests(workspace, "undisturbed")
    parts = account(workspace, name)
    assert ("suspended" in parts) is (name == "second")
    # The delay is the job's own time only as far as its chief has stopped: the other victim's takes a while to stop.
    assert {"importing", "tracing", "useful", *(["backoff"] if victim == FIRST else [])} <= parts.keys()
    assert parts["useful"] > parts.get("recomputing", 0)
    assert status["goodput"]["reachedStep"] == STEPS
    assert status["lastRecovery"]["how"] == "Pods"
    assert {"detected", "created", "started"} <= status["lastRecovery"].keys()


def test_in_place_a_killed_task_costs_no_pod_and_not_one_bit(disaster: Disaster) -> None:
    """The same kill, and the processes of both pods start again in them."""
    workspace = disaster.workspace
    train(workspace, "in-place", _on(disaster.stays), victim=SECOND, recovery="InPlace")
    for job in ("in-place", "undisturbed"):
        assert workspace.finished(job, seconds=180) == "Succeeded", workspace.describe()
    status = workspace.status("in-place")
    assert (status["attempt"], status["restarts"], status["inPlaceRestarts"]) == (1, 1, 1)
    workspace.eventually(lambda: told_of_restart(workspace, "in-place"), "it is told that it restarted in place")
    for pod in ("in-place-worker-0", "in-place-worker-1"):
        assert "started again in place, for the 1st time" in log(workspace, pod)
    assert digests(workspace, "in-place") == digests(workspace, "undisturbed")
    assert "backoff" not in account(workspace, "in-place")
    recovery = status["lastRecovery"]
    moments = [recovery[name] for name in ("failed", "detected", "ended", "started", "restored", "stepped")]
    assert recovery["how"] == "InPlace"
    assert moments == sorted(moments)


def test_parameter_servers_recover_in_place(disaster: Disaster, operator: Installation) -> None:
    """kill -9 of a worker's, a server's and the chief's process, and of the operator: who must starts again, and no pod
    is touched. Then suspended and resumed: each second of it all has a name.
    """
    workspace, name = disaster.workspace, "served"
    serve(workspace, name, dict.fromkeys(("chief", "ps", "worker"), _on(disaster.stays)), recovery="InPlace")
    # The rest after an epoch comes before its checkpoint: once the second has begun, there is one to resume from.
    beyond = "it trains beyond its first epoch"
    workspace.eventually(lambda: steps_done(workspace, f"{name}-chief-0") > STEPS_AN_EPOCH, beyond, seconds=180)
    pods = workspace.uids(name)
    kill_process(workspace, f"{name}-worker-1", f"{name}-worker-1", "the chief asks for a first batch", "")
    leader = operator.wait_for_leader()
    if not operator.as_process:
        workspace.kube.delete("Pod", NAMESPACE, leader, grace_seconds=0)
    for victim in ("ps-0", "chief-0"):
        kill_process(workspace, f"{name}-{victim}", f"{name}-chief-0", RESUMED, '"tfgpu": "progress"')
    if not operator.as_process:
        operator.wait_for_leader(other_than=leader)
    again = {pod.removeprefix(f"{name}-"): log(workspace, pod).count("started again in place") for pod in pods}
    all_with_the_server = {"worker-0": 1, "worker-1": 2, "ps-0": 1, "chief-0": 2}
    assert {pod: times for pod, times in again.items() if times} == all_with_the_server
    workspace.eventually(lambda: workspace.status(name).get("inPlaceRestarts") == 3, "all are counted", seconds=90)
    workspace.eventually(lambda: told_of_restart(workspace, name), "it is told that it restarted in place")
    status = workspace.status(name)
    assert (status["attempt"], status["restarts"], status["lastRecovery"]["how"]) == (1, 3, "InPlace")
    assert workspace.uids(name) == pods

    workspace.edit(name, runPolicy={"suspend": True})
    workspace.wait_for(name, "Suspended")
    workspace.eventually(lambda: not workspace.pods(name), "no pod runs")
    workspace.edit(name, runPolicy={"suspend": False})
    workspace.wait_for(name, "Running")
    workspace.eventually(lambda: steps_done(workspace, f"{name}-chief-0") > 0, "it trains again", seconds=180)
    enough(workspace, f"{name}-chief-0")
    assert workspace.finished(name, seconds=180) == "Succeeded", workspace.describe()
    status = workspace.status(name)
    assert (status["attempt"], status["restarts"], status["inPlaceRestarts"]) == (2, 3, 3)
    assert summary(workspace.pods(name)[f"{name}-chief-0"])["steps"] == SERVED_STEPS
    parts = account(workspace, name)
    assert {"importing", "tracing", "suspended", "useful"} <= parts.keys()
    assert "backoff" not in parts


def test_fault_node_lost(disaster: Disaster) -> None:
    """The node of half of a real gang is gone: it continues elsewhere from its checkpoint, and loses no bit and no
    budget.
    """
    workspace = disaster.workspace
    for job in ("moved", "undisturbed"):
        assert workspace.finished(job, seconds=180) == "Succeeded", workspace.describe()
    status = workspace.status("moved")
    assert (status["attempt"], status.get("restarts", 0), status["disruptions"]) == (2, 0, 1)
    assert status["lastFailure"]["cause"] == "NodeLost"
    assert {pod["spec"]["nodeName"] for pod in workspace.pods("moved").values()} == {disaster.stays}
    assert re.search(r"resuming after step \d+", log(workspace, "moved-worker-0"))
    assert digests(workspace, "moved") == digests(workspace, "undisturbed")


def test_fault_terminating(disaster: Disaster) -> None:
    """A deleted job's pods are stuck on the lost node: they are forced, and a new job of that name runs."""
    workspace = disaster.workspace
    workspace.wait_for("deleted", "Running")
    assert not set(workspace.uids("deleted").values()) & set(disaster.before["deleted"].values())
    assert workspace.status("deleted")["attempt"] == 1


def test_a_replica_whose_node_is_lost_starts_again_alone(disaster: Disaster) -> None:
    """Custom with restartScope Replica: one new pod, on the other node. All others stay."""
    workspace = disaster.workspace
    (new,) = replaced(disaster, "alone")
    assert new in {"alone-worker-0", "alone-worker-1"}
    status = workspace.status("alone")
    assert (status["attempt"], status.get("restarts", 0), status["disruptions"]) == (1, 0, 1)


def test_a_worker_whose_node_is_lost_takes_the_chief_of_the_parameter_servers_along(disaster: Disaster) -> None:
    """The chief would wait for the dead connection for a quarter of an hour; ps and the other worker stay."""
    workspace = disaster.workspace
    new = replaced(disaster, "servers")
    assert new in ({"servers-chief-0", "servers-worker-0"}, {"servers-chief-0", "servers-worker-1"})
    assert re.search(r"resuming after step \d+", log(workspace, "servers-chief-0"))
    enough(workspace, "servers-chief-0")
    assert workspace.finished("servers") == "Succeeded", workspace.describe()
    status = workspace.status("servers")
    assert (status["attempt"], status.get("restarts", 0), status["disruptions"]) == (1, 0, 1)
    assert summary(workspace.pods("servers")["servers-chief-0"])["steps"] == SERVED_STEPS


def test_two_processes_in_a_pod_train_as_two_pods_do(disaster: Disaster) -> None:
    """They share a (pretended) GPU, and end with the same bits."""
    workspace = disaster.workspace
    if not workspace.kube.has_gpus():
        pytest.skip("no node of this cluster has a GPU, and none that pretends")
    for job in ("shared", "undisturbed"):
        assert workspace.finished(job, seconds=180) == "Succeeded", workspace.describe()
    assert list(workspace.pods("shared")) == ["shared-worker-0"]
    assert "2 processes share each GPU" in log(workspace, "shared-worker-0")
    assert digests(workspace, "shared") == digests(workspace, "undisturbed")


def told_of_restart(workspace: Workspace, name: str) -> bool:
    """By an event, which may come after the status."""
    return "RestartedInPlace" in {event["reason"] for event in workspace.events(name)}


def replaced(disaster: Disaster, name: str) -> set[str]:
    """The pods that are new since the node went, once all run on the node that is left."""
    workspace = disaster.workspace

    def settled() -> bool:
        pods = workspace.pods(name)
        there = all(pod["spec"].get("nodeName") == disaster.stays for pod in pods.values())
        ready = workspace.status(name).get("ready") == f"{len(disaster.before[name])}/{len(disaster.before[name])}"
        return len(pods) == len(disaster.before[name]) and there and ready

    workspace.eventually(settled, f"all pods of {name} run on {disaster.stays}")
    now = workspace.uids(name)
    return {pod for pod, uid in now.items() if uid != disaster.before[name][pod]}
