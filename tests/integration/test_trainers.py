"""Real trainers that lose a process and continue without a restart of the others, and one that delays the others.

All jobs run at the same time.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.integration.conftest import new_workspace
from tests.integration.installed import Installation
from tests.integration.kube import Kube, Object, path_of
from tests.integration.target import Target
from tests.integration.training import (
    KILL,
    SERVED_STEPS,
    STEPS,
    STEPS_AN_EPOCH,
    enough,
    log,
    new_trainer,
    serve,
    steps_done,
    summary,
    train,
)
from tests.integration.workspace import Workspace
from tests.machine import scaled

Tell = Callable[[str], None]
ROWS, PART_ROWS = 297, 16
PREDICTING = 3
"""Workers of the job that is disturbed while it predicts."""


@pytest.fixture(scope="module")
def trainers(kube: Kube, target: Target, operator: Installation) -> Iterator[Workspace]:
    """Parameter servers, two jobs that predict, and a pair of workers of which the second is slow."""
    with new_workspace(kube, target, operator) as workspace:
        serve(workspace, "servers", {"chief": {}, "ps": {}, "worker": {}}, backoffLimit=3)
        train(workspace, "pair", {}, victim="1", mishap="slow", steps=10 * STEPS, stallSeconds=scaled(15))
        job = new_trainer(workspace, "taught", {"worker": {"replicas": 1}}, paced="")
        job["spec"]["strategy"] = "OneDevice"
        workspace.submit(job)
        workspace.finished("taught")
        for name, workers, paced in (("calm", 1, ""), ("disturbed", PREDICTING, "predicting")):
            workspace.submit(_predict(workspace, name, workers, paced))
        yield workspace


def _predict(workspace: Workspace, name: str, workers: int, paced: str) -> Object:
    """A job that predicts with the model of `taught`, row by row."""
    taught = {"name": "taught", "persistentVolumeClaim": {"claimName": "taught"}}
    job = new_trainer(workspace, name, {"worker": {"replicas": workers, "pod": {"volumes": [taught]}}}, paced=paced)
    (container,) = job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"]
    container["volumeMounts"] = [{"name": "taught", "mountPath": "/taught"}]
    job["spec"] |= {"strategy": "Custom", "runPolicy": {"backoffLimit": workers}}
    trainer = job["spec"]["trainer"]
    del trainer["epochs"], trainer["checkpoint"]
    predict = {"model": "/taught/model.keras", "partRows": PART_ROWS}
    trainer |= {"mode": "predict", "globalBatchSize": 1, "predict": predict}
    return job


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Prints, whether the test passes or not."""

    def say(line: str) -> None:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{line}")

    return say


def test_predictions_are_there_once_whoever_is_killed(trainers: Workspace, target: Target, tell: Tell) -> None:
    """kill -9 of each worker once it has written a part: each comes back alone, and the parts are the bytes of an
    undisturbed run."""
    trainers.eventually(lambda: len(_workers_with_a_part(trainers)) == PREDICTING, "all have written")
    killed = time.monotonic()
    for index in range(PREDICTING):
        trainers.run_in(f"disturbed-worker-{index}", KILL)
    for name in ("calm", "disturbed"):
        assert trainers.finished(name) == "Succeeded", trainers.describe()
    tell(f"{PREDICTING} workers that predict were killed: all rows are there after {time.monotonic() - killed:.1f} s")
    status = trainers.status("disturbed")
    assert (status["attempt"], status["restarts"], status.get("disruptions", 0)) == (1, PREDICTING, 0)
    assert {record["restarts"] for record in status["restartRecords"]} == {1}
    ends = [summary(pod) for pod in trainers.pods("disturbed").values()]
    assert all(0 < end["partsWrittenBefore"] < end["parts"] for end in ends)

    calm, disturbed = _read_predictions(trainers, target.trainer_image, "calm", "disturbed")
    assert disturbed == calm
    rows = [row for part in calm["parts"].values() for row in part["rows"]]
    assert rows == list(range(ROWS))
    assert json.loads(calm["commit"])["rows"] == ROWS


def _workers_with_a_part(workspace: Workspace) -> set[int]:
    """Numbers of the workers of which a part of the predictions is there."""
    if workspace.status("disturbed").get("ready") != f"{PREDICTING}/{PREDICTING}":
        return set()
    listed = workspace.run_in("disturbed-worker-0", "ls /output/predictions")
    return {int(start) // PART_ROWS % PREDICTING for start in re.findall(r"^part-(\d+)", listed, re.MULTILINE)}


READ = """
import hashlib, json, pathlib, sys, numpy
found = []
for folder in [pathlib.Path(f"/{name}/predictions") for name in sys.argv[1:]]:
    parts = {
        part.name: {
            "rows": numpy.load(part)["row"].tolist(),
            "sha256": hashlib.sha256(part.read_bytes()).hexdigest(),
        }
        for part in sorted(folder.glob("part-*"))
    }
    found.append({"parts": parts, "commit": (folder / "COMMIT").read_text()})
print(json.dumps(found))
"""


def _read_predictions(workspace: Workspace, image: str, *names: str) -> list[dict[str, Any]]:
    """What lies in the claims of these jobs, in the order of the rows."""
    reader = f"reader-of-{names[-1]}"
    container = {
        "name": "tensorflow",
        "image": image,
        "command": ["python", "-c", READ, *names],
        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in names],
    }
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    spec = {"containers": [container], "volumes": volumes, "restartPolicy": "Never"}
    workspace.kube.create("Pod", workspace.namespace, {"metadata": {"name": reader}, "spec": spec})

    def ended() -> bool:
        pod = workspace.kube.get("Pod", workspace.namespace, reader)
        return pod["status"].get("phase") in {"Succeeded", "Failed"}

    workspace.eventually(ended, "the predictions are read")
    found: list[dict[str, Any]] = json.loads(workspace.kube.log(workspace.namespace, reader, "tensorflow"))
    return found


def test_workers_that_predict_come_and_go_and_nobody_else_is_touched(
    trainers: Workspace, target: Target, tell: Tell
) -> None:
    """One → three → two workers by /scale, and a pod that is deleted: the files are those of one worker."""
    job = _predict(trainers, "shared", 1, "predicting")
    job["spec"]["replicaSpecs"]["worker"] |= {"minReplicas": 1, "maxReplicas": 4}
    job["spec"]["runPolicy"] = {"backoffLimit": 0}
    trainers.finished("taught")
    trainers.submit(job)
    first = "shared-worker-0"
    trainers.eventually(lambda: _who_has_begun(trainers) == {0}, "it predicts")
    stays = trainers.uids("shared")[first]
    _scale(trainers, "shared", 3)
    trainers.eventually(lambda: _who_has_begun(trainers) == {0, 1, 2}, "two more take parts")
    _scale(trainers, "shared", 2)
    trainers.kube.delete("Pod", trainers.namespace, "shared-worker-1")
    trainers.eventually(lambda: "shared-worker-2" not in trainers.pods("shared"), "one has left")
    assert trainers.uids("shared")[first] == stays
    there = len(re.findall(r"^part-", trainers.run_in(first, "ls /output/predictions"), re.MULTILINE))
    assert there * PART_ROWS < ROWS, "all of it happened while there was something left"
    enough(trainers, first)
    began = time.monotonic()
    assert trainers.finished("shared") == "Succeeded", trainers.describe()
    tell(f"{there} parts were there when workers had come and gone, and all {time.monotonic() - began:.1f} s later")
    status = trainers.status("shared")
    assert (status["attempt"], status["resizes"], status["restarts"]) == (1, 2, 0)
    assert trainers.uids("shared")[first] == stays
    assert trainers.finished("calm") == "Succeeded"
    calm, shared = _read_predictions(trainers, target.trainer_image, "calm", "shared")
    assert shared == calm


def _who_has_begun(workspace: Workspace) -> set[int]:
    """Indexes of the workers that have taken a part."""
    if workspace.status("shared").get("phase") != "Running":
        return set()
    told = workspace.run_in("shared-worker-0", "cat /output/predictions/taken-* 2> /dev/null || true")
    return {int(index) for index in re.findall(r"^worker-(\d+)$", told, re.MULTILINE)}


def _scale(workspace: Workspace, name: str, workers: int) -> None:
    path = f"{path_of('TFGPUJob', workspace.namespace, name)}/scale"
    workspace.kube.call("PATCH", path, {"spec": {"replicas": workers}}, "application/merge-patch+json")


def test_parameter_servers_outlive_every_kill(trainers: Workspace, tell: Tell) -> None:
    """kill -9 of a worker, the chief and a ps in turn: who starts again, from where, and what it costs."""
    trainers.eventually(lambda: steps_done(trainers, "servers-chief-0"), "it trains")
    took = {}
    for victim, new in (("worker-1", ["worker-1"]), ("chief-0", ["chief-0"]), ("ps-0", ["chief-0", "ps-0"])):
        before, step = trainers.uids("servers"), steps_done(trainers, "servers-chief-0")
        trainers.run_in(f"servers-{victim}", KILL)
        killed = time.monotonic()
        trainers.eventually(partial(_trains_again, trainers, new[0], before), f"{victim} is back")
        took[victim] = time.monotonic() - killed
        now = trainers.uids("servers")
        assert sorted(pod for pod, uid in now.items() if uid != before[pod]) == [f"servers-{task}" for task in new]
        if "chief-0" in new:
            resumed = re.search(r"resuming after step (\d+)", log(trainers, "servers-chief-0"))
            assert resumed
            # The last of two saves may not have been published yet.
            assert int(resumed[1]) > step - 3 * STEPS_AN_EPOCH
    told = ", ".join(f"{victim} after {seconds:.1f} s" for victim, seconds in took.items())
    tell(f"killed under ParameterServer, and training again: {told}")

    enough(trainers, "servers-chief-0")
    assert trainers.finished("servers") == "Succeeded", trainers.describe()
    status = trainers.status("servers")
    assert (status["attempt"], status["restarts"], status.get("disruptions", 0)) == (1, 3, 0)
    ended = summary(trainers.pods("servers")["servers-chief-0"])
    assert ended["steps"] == SERVED_STEPS
    assert 0 <= ended["repeatedSteps"] <= STEPS_AN_EPOCH


def _trains_again(workspace: Workspace, task: str, before: dict[str, str]) -> bool:
    """Whether the pod of the task is another one than before, and has done a step."""
    pod = f"servers-{task}"
    if workspace.uids("servers").get(pod, before[pod]) == before[pod]:
        return False
    return "the chief asks for a first batch" in log(workspace, pod) or steps_done(workspace, pod) > 0


def test_a_worker_that_computes_slowly_and_then_hangs_is_named(trainers: Workspace) -> None:
    """Degraded while it is slow, and Stalled once it hangs; in both, the other one waits for it."""
    found = trainers.wait_for("pair", "Degraded")
    told = re.search(r"pair-worker-1 needs ([\d.]+) s of its own for a step, the others ([\d.]+) s", found["message"])
    assert told, found["message"]
    # Its steps rest for three times as long; what they compute besides takes all the same time.
    assert float(told[1]) >= 0.3
    assert 1.5 < float(told[1]) / float(told[2]) < 3.1
    assert "waits for its data" not in found["message"]
    trainers.run_in("pair-worker-1", "touch /tmp/hang")
    found = trainers.wait_for("pair", "Stalled")
    stalled = r"nothing was done for more than \d+ s\. pair-worker-1 holds up the others\."
    assert re.search(stalled, found["message"]), found["message"]
    assert trainers.condition("pair", "Degraded")["status"] == "True"
