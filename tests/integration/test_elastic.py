"""An elastic job continues with another number of workers, with real training."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from localcluster.layout import ClusterError
from tests.integration import training
from tests.integration.kube import Object, path_of
from tests.integration.target import Target
from tests.integration.tool import Tool
from tests.integration.workspace import Workspace
from tests.machine import PATIENCE
from tests.pages import ROOT, typed_by

from tfgpujob.exits import Exit

STEPS = 2 * training.STEPS
IN_PLACE_STEPS = 5 * training.STEPS
IN_PLACE_PACE = 0.3
"""It trains while pods come and go, however long that takes: for three minutes, unless it has been `enough`."""


def test_a_job_that_trains_is_scaled_up_and_down_and_ends_as_one(workspace: Workspace) -> None:
    job = training.new_trainer(workspace, "elastic", {"worker": {"replicas": 2}}, steps=STEPS)
    job["spec"]["replicaSpecs"]["worker"] |= {"minReplicas": 1, "maxReplicas": 3}
    name = workspace.submit(job)
    up = resized(workspace, name, workers=3, after=10)
    down = resized(workspace, name, workers=1, after=up + 10)
    assert 0 < up < down < STEPS
    assert workspace.finished(name) == "Succeeded"
    status = workspace.status(name)
    assert (status["resizes"], status["restarts"], status["attempt"]) == (2, 0, 3)
    assert list(workspace.pods(name)) == [f"{name}-worker-0"]
    assert f"done after {STEPS} steps" in training.log(workspace, f"{name}-worker-0")


def test_the_page_as_it_is_typed(tool: Tool) -> None:
    (tool.folder / "examples").symlink_to(ROOT / "examples")
    submit, more, fewer, describe, delete = typed_by(__file__)

    def status() -> Object:
        return tool.workspace.status("elastic")

    def resizes(times: int) -> bool:
        return bool(status().get("resizes") == times)

    tool.type(*submit)
    tool.run("wait", "elastic", "--for", "Running", "--timeout", str(PATIENCE))
    tool.type(*more)
    tool.workspace.eventually(partial(resizes, 1), "four train")
    tool.type(*(fewer if shutil.which(fewer[0]) else ("tfgpu", "scale", "elastic", "--workers", "1")))
    tool.workspace.eventually(partial(resizes, 2), "one trains")
    told = tool.type(*describe)
    assert re.search("From 2 workers to 4 in [0-9]+ s: the pods that stay were not touched", told), told
    assert "From 4 workers to 1 in" in told, told
    assert (status()["attempt"], status()["restarts"]) == (1, 0)
    tool.type(*delete)
    assert "not found" in tool.run("get", "elastic", code=Exit.NOT_FOUND)


def test_in_place_no_pod_that_stays_is_touched(workspace: Workspace) -> None:
    """2 → 4 → 2 → 3 workers while it trains, then one of them is deleted: one attempt, and no pod but that one goes."""
    two = {"worker": {"replicas": 2}}
    job = training.new_trainer(workspace, "in-place", two, steps=IN_PLACE_STEPS, pace=IN_PLACE_PACE)
    job["spec"]["replicaSpecs"]["worker"] |= {"minReplicas": 1, "maxReplicas": 4}
    job["spec"]["runPolicy"] |= {"recovery": "InPlace", "backoffLimit": 0, "elasticPolicy": {"shrinkAfterSeconds": 600}}
    name = workspace.submit(job)
    first = f"{name}-worker-0"
    stay = [first, f"{name}-worker-1"]
    workspace.eventually(lambda: training.steps_done(workspace, first) > 5, "it trains")
    before = workspace.uids(name)
    for resizes, workers in enumerate((4, 2, 3), 1):
        scale(workspace, name, workers)

        def fulfilled(resizes: int = resizes, workers: int = workers) -> bool:
            return workspace.status(name).get("resizes") == resizes and len(workspace.pods(name)) == workers

        workspace.eventually(fulfilled, f"{workers} workers train")
        assert {pod: workspace.uids(name)[pod] for pod in stay} == before, workspace.describe()
        least = training.steps_done(workspace, first) + 2
        workspace.eventually(partial(trains_beyond, workspace, first, least), "it trains on")
        done = training.steps_done(workspace, first)
    before = workspace.uids(name)
    lost = f"{name}-worker-1"
    workspace.kube.delete("Pod", workspace.namespace, lost)
    workspace.eventually(lambda: workspace.uids(name).get(lost, before[lost]) != before[lost], "another pod comes")
    before[lost] = workspace.uids(name)[lost]
    done = training.steps_done(workspace, first)
    workspace.eventually(partial(all_train, workspace, name, 3), "the new pod has joined")
    workspace.eventually(partial(trains_beyond, workspace, first, done + 2), "it trains on with the new pod")
    done = training.steps_done(workspace, first)
    assert workspace.uids(name) == before, workspace.describe()
    assert done < IN_PLACE_STEPS, "all of it happened while it trained"
    training.enough(workspace, first)
    assert workspace.finished(name) == "Succeeded"
    status = workspace.status(name)
    assert (status["attempt"], status["resizes"], status["restarts"], status["disruptions"]) == (1, 3, 0, 1)
    pods = workspace.pods(name)
    assert sorted(pods) == [f"{name}-worker-{index}" for index in range(3)]
    for pod in stay:
        (container,) = pods[pod]["status"]["containerStatuses"]
        assert (pods[pod]["metadata"]["uid"], container["restartCount"]) == (before[pod], 0)
    assert len(training.digests(workspace, name)) == 1
    assert "ResizedInPlace" in {event["reason"] for event in workspace.events(name)}
    assert training.summary(pods[first])["steps"] == IN_PLACE_STEPS


@pytest.mark.deep
def test_it_trains_with_those_that_there_is_room_for_and_takes_in_a_fourth(workspace: Workspace) -> None:
    """Eight are asked for, three have room: they train, and no pod of theirs is touched when a fourth joins. They train
    on without that one, too, while a job of a higher priority has its place."""
    eight = {"worker": {"replicas": 8}}
    job = training.new_trainer(workspace, "fits", eight, steps=IN_PLACE_STEPS, pace=IN_PLACE_PACE)
    worker = job["spec"]["replicaSpecs"]["worker"]
    worker |= {"minReplicas": 2, "maxReplicas": 8}
    seat = f"example.com/{workspace.namespace}"
    worker["template"]["spec"]["containers"][0]["resources"] = {"limits": {seat: "1"}}
    policy = {"shrinkAfterSeconds": 5, "growAfterSeconds": 5}
    job["spec"]["runPolicy"] |= {"recovery": "InPlace", "elasticPolicy": policy}
    with seats(workspace, seat, 3) as offer, higher_priority(workspace) as higher:
        name = workspace.submit(job)
        first = f"{name}-worker-0"
        told = workspace.wait_for(name, "Running", reason="Shrunk")["message"]
        assert told.startswith("3 of the 8 workers that replicas asks for train"), told
        workspace.eventually(partial(trains_beyond, workspace, first, 5), "it trains")
        before = {pod: uid for pod, uid in workspace.uids(name).items() if int(pod.rpartition("-")[2]) < 3}
        offer(4)
        workspace.eventually(lambda: workspace.status(name)["plan"]["counts"]["worker"] == 4, "a fourth trains")
        assert before.items() <= workspace.uids(name).items(), workspace.describe()
        done = training.steps_done(workspace, first)
        workspace.eventually(partial(trains_beyond, workspace, first, done + 2), "it trains on")
        before = workspace.uids(name)
        urgent = workspace.submit(preempting(workspace, seat, higher))
        absent = workspace.eventually(lambda: workspace.status(name)["plan"].get("absent"), "it gave a worker up")
        told = workspace.wait_for(name, "Running", reason="Shrunk")["message"]
        assert (absent, told[:19]) == ([3], "3 of 4 workers trai"), told
        workspace.wait_for(urgent, "Running")
        done = training.steps_done(workspace, first)
        workspace.eventually(partial(trains_beyond, workspace, first, done + 2), "it trains on")
        assert workspace.status(name)["plan"]["absent"] == [3], "there is no room for another one meanwhile"
        training.enough(workspace, f"{urgent}-worker-0")
        assert workspace.finished(urgent) == "Succeeded"
        workspace.eventually(partial(all_train, workspace, name, 4), "another one has come in its place")
        done = training.steps_done(workspace, first)
        workspace.eventually(partial(trains_beyond, workspace, first, done + 2), "it trains on")
        now = workspace.uids(name)
        assert {pod for pod in before if now.get(pod) == before[pod]} >= {f"{name}-worker-{i}" for i in range(3)}
        training.enough(workspace, first)
        assert workspace.finished(name) == "Succeeded"
    status = workspace.status(name)
    assert (status["attempt"], status["resizes"], status["restarts"], status["disruptions"]) == (2, 2, 0, 1)
    workspace.eventually(lambda: len(workspace.pods(name)) == 4, "the pod that looked for more room is gone")
    assert len(training.digests(workspace, name)) == 1
    assert training.summary(workspace.pods(name)[first])["steps"] == IN_PLACE_STEPS


def preempting(workspace: Workspace, resource: str, priority: str) -> Object:
    """A job of one worker that needs one of this resource, and may preempt others."""
    job = training.new_trainer(workspace, "urgent", {"worker": {"replicas": 1}}, steps=IN_PLACE_STEPS)
    container = job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {resource: "1"}}
    job["spec"]["runPolicy"] |= {"schedulingPolicy": {"priorityClass": priority}}
    return job


@contextmanager
def higher_priority(workspace: Workspace) -> Iterator[str]:
    """A PriorityClass that others of its namespace don't have."""
    name = f"urgent-{workspace.namespace}"
    workspace.kube.create("PriorityClass", "", {"metadata": {"name": name}, "value": 1000})
    try:
        yield name
    finally:
        workspace.kube.delete("PriorityClass", "", name)


@pytest.mark.serial
def test_it_trains_on_without_a_node_that_is_lost_and_with_it_again_when_it_is_back(
    workspace: Workspace, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    if len(target.cluster.nodes) < 2:
        pytest.skip("this cluster has no second node")
    stays, goes = target.cluster.nodes[0], target.cluster.nodes[-1]
    job = training.new_trainer(
        workspace, "cut-off", {"worker": {"replicas": 1}}, steps=IN_PLACE_STEPS, pace=IN_PLACE_PACE
    )
    worker = job["spec"]["replicaSpecs"]["worker"]
    worker |= {"minReplicas": 1, "maxReplicas": 2}
    seat = f"example.com/{workspace.namespace}"
    worker["template"]["spec"]["containers"][0]["resources"] = {"limits": {seat: "1"}}
    policy = {"elasticPolicy": {"shrinkAfterSeconds": 600}, "forceDeleteAfterSeconds": 3}
    job["spec"]["runPolicy"] |= {"recovery": "InPlace", "backoffLimit": 0, **policy}
    with seats(workspace, seat, 1, stays), seats(workspace, seat, 0, goes) as offer:
        name = workspace.submit(job)
        first = f"{name}-worker-0"
        workspace.eventually(partial(trains_beyond, workspace, first, 5), "it trains")
        offer(1)
        scale(workspace, name, 2)
        workspace.eventually(lambda: workspace.status(name).get("resizes") == 1, "a second worker trains")
        before = workspace.uids(name)
        cut = time.monotonic()
        try:
            target.cluster.stop_node(goes)
        except ClusterError as error:
            pytest.skip(error.problem)
        try:
            workspace.eventually(lambda: workspace.status(name).get("disruptions"), "the operator knows")
            known = time.monotonic() - cut
            workspace.eventually(lambda: "without worker-1" in training.log(workspace, first), "a round begins without")
            done = training.steps_done(workspace, first)
            workspace.eventually(partial(trains_beyond, workspace, first, done), "it trains on")
            with capsys.disabled():
                went_on = time.monotonic() - cut
                print(
                    f"\na node was lost: the operator knows after {known:.1f} s, training goes on after {went_on:.1f} s"
                )
            absent = workspace.eventually(lambda: workspace.status(name)["plan"].get("absent"), "it goes on without")
            told = workspace.wait_for(name, "Running", reason="Shrunk")["message"]
            assert (absent, told[:19]) == ([1], "1 of 2 workers trai"), told
            done = training.steps_done(workspace, first)
            workspace.eventually(partial(trains_beyond, workspace, first, done + 2), "it trains on")
        finally:
            target.cluster.start_node(goes)
        # A kubelet that starts reports its node's resources again.
        offer(1)
        workspace.eventually(partial(all_train, workspace, name, 2), "a worker has come to the node that is back")
        done = training.steps_done(workspace, first)
        workspace.eventually(partial(trains_beyond, workspace, first, done + 2), "it trains on with that")
        assert workspace.uids(name)[first] == before[first]
        training.enough(workspace, first)
        assert workspace.finished(name) == "Succeeded"
    status = workspace.status(name)
    assert (status["attempt"], status["resizes"], status["restarts"], status["disruptions"]) == (1, 1, 0, 1)
    assert len(training.digests(workspace, name)) == 1
    assert training.summary(workspace.pods(name)[first])["steps"] == IN_PLACE_STEPS


@contextmanager
def seats(workspace: Workspace, resource: str, count: int, node: str = "") -> Iterator[Callable[[int], None]]:
    """One node has `count` of a resource that no other pod uses or requests; the yielded function changes that."""
    path = f"{path_of('Node', '', node or workspace.kube.list('Node', '')[0]['metadata']['name'])}/status"

    def offer(count: int | None) -> None:
        given = None if count is None else str(count)
        status = {"capacity": {resource: given}, "allocatable": {resource: given}}
        workspace.kube.call("PATCH", path, {"status": status}, "application/merge-patch+json")

    offer(count)
    try:
        yield offer
    finally:
        offer(None)


def all_train(workspace: Workspace, name: str, workers: int) -> bool:
    """No worker is missing any more."""
    status = workspace.status(name)
    return "absent" not in status["plan"] and status["ready"] == f"{workers}/{workers}"


def trains_beyond(workspace: Workspace, pod: str, step: int) -> bool:
    return training.steps_done(workspace, pod) > step


def scale(workspace: Workspace, name: str, workers: int) -> None:
    """As `kubectl scale` does."""
    path = f"{path_of('TFGPUJob', workspace.namespace, name)}/scale"
    told = workspace.kube.call("PATCH", path, {"spec": {"replicas": workers}}, "application/merge-patch+json")
    assert told["spec"]["replicas"] == workers


def resized(workspace: Workspace, name: str, *, workers: int, after: int) -> int:
    """Scale it, as `kubectl scale` does, after this many steps; returns the step after which the new pods continue."""
    first = f"{name}-worker-0"
    workspace.eventually(lambda: training.steps_done(workspace, first) > after, f"it trains beyond step {after}")
    before = workspace.uids(name)[first]
    scale(workspace, name, workers)

    def resumed() -> re.Match[str] | None:
        if workspace.uids(name).get(first, before) == before:
            return None
        return re.search(r"resuming after step (\d+)", training.log(workspace, first))

    step = int(workspace.eventually(resumed, f"{workers} new workers go on").group(1))
    workspace.wait_for(name, "Running")
    assert len(workspace.pods(name)) == workers
    return step


@pytest.mark.deep
def test_an_autoscaler_gives_workers_to_parameter_servers_and_takes_them_and_nobody_stops(workspace: Workspace) -> None:
    """A real HorizontalPodAutoscaler, which needs no metrics to bring a number into its bounds."""
    roles = {"worker": {"replicas": 1}, "ps": {"replicas": 1}, "chief": {"replicas": 1}}
    job = training.new_trainer(workspace, "autoscaled", roles, steps=training.SERVED_STEPS)
    job["spec"]["strategy"] = "ParameterServer"
    job["spec"]["trainer"]["checkpoint"] = {"everyEpochs": 1}
    job["spec"]["replicaSpecs"]["worker"] |= {"minReplicas": 1, "maxReplicas": 4}
    job["spec"]["runPolicy"] |= {"backoffLimit": 0}
    name = workspace.submit(job)
    chief = f"{name}-chief-0"
    workspace.eventually(partial(trains_beyond, workspace, chief, 12), "it trains")
    before = workspace.uids(name)
    bounds = autoscaler(workspace, name, 2, 3)
    workspace.eventually(lambda: "worker-1 joined" in training.log(workspace, chief), "a second worker trains")
    # Once it has been up for a minute.
    workspace.eventually(partial(all_train, workspace, name, 4), "and the status says so")
    assert before.items() <= workspace.uids(name).items(), workspace.describe()
    workspace.kube.call("PATCH", bounds, {"spec": {"minReplicas": 1, "maxReplicas": 1}}, "application/merge-patch+json")
    workspace.eventually(lambda: workspace.uids(name) == before, "it is taken again")
    workspace.eventually(lambda: "worker-1 left" in training.log(workspace, chief), "and nobody waits for it")
    done = training.steps_done(workspace, chief)
    workspace.eventually(partial(trains_beyond, workspace, chief, done + 12), "it trains on")
    assert "taken twice" not in training.log(workspace, chief)
    training.enough(workspace, chief)
    assert workspace.finished(name) == "Succeeded"
    status = workspace.status(name)
    assert (status["attempt"], status["resizes"], status["restarts"]) == (1, 2, 0)
    assert training.summary(workspace.pods(name)[chief])["steps"] == training.SERVED_STEPS


def autoscaler(workspace: Workspace, name: str, least: int, most: int) -> str:
    """Makes one of the job's workers; its path."""
    path = f"/apis/autoscaling/v1/namespaces/{workspace.namespace}/horizontalpodautoscalers"
    target = {"apiVersion": "tfgpu.dev/v1alpha1", "kind": "TFGPUJob", "name": name}
    spec = {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": most, "targetCPUUtilizationPercentage": 50}
    workspace.kube.call("POST", path, {"metadata": {"name": name}, "spec": spec})
    return f"{path}/{name}"
