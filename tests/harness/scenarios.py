"""The stories. Every write of each of them is a crash point; every watch event a way to be misled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness.process import upgraded
from tests.harness.resources import Object
from tests.harness.scenario import (
    Scenario,
    Step,
    after,
    apply,
    at_once,
    counts,
    created,
    delete,
    edit,
    ended,
    evict,
    finish,
    foreign_pod,
    foreign_service,
    gone,
    job,
    kill,
    lose,
    lose_node,
    no_pods,
    nothing,
    quota,
    refuse,
    refuse_no_more,
    running,
    shows,
    start,
    stop,
    suspend,
    then,
    training,
    vanish,
)
from tests.harness.world import World

from tfgpujob import names
from tfgpujob.shell.ports import ApiError

SUCCEEDED = {"train": "Succeeded"}
FAILED = {"train": "Failed"}
RUNNING = {"train": "Running"}
PENDING = {"train": "Pending"}
MWM = job("train", worker=2)
FOREVER = {"worker": (None,), "chief": (None,)}
STATUS = "/TFGPUJob default/train/status/"
STARTING = "lost before or after it was written that all were created: only then it counts as a disruption"
SECOND_TIME = {"worker": (None, 0)}
"""The first run goes on until something ends it: how slow an operator is must not change what happens."""


def submit(obj: Object) -> Step:
    return Step(at_once, apply(obj))


def _forbid_worker_1(verb: str, kind: str, obj: Mapping[str, Any]) -> ApiError | None:
    if (verb, kind, obj["metadata"]["name"]) == ("create", "Pod", "train-worker-1"):
        return ApiError(403, "Forbidden", 'pods "train-worker-1" is forbidden: violates the policy "baseline"')
    return None


def _upgrade(world: World) -> None:
    world.config = upgraded()
    world.operators["operator-a"].kill()


_MISFIT = {
    "replicaSpecs": {
        "worker": {
            "replicas": 2,
            "template": {
                "spec": {"containers": [{"name": "tensorflow", "resources": {"limits": {"nvidia.com/gpu": "x"}}}]}
            },
        }
    }
}

STRATEGIES = (
    Scenario(name="one-device", script=(submit(job("train", "OneDevice", worker=1)),), phases=SUCCEEDED),
    Scenario(
        name="mirrored-evaluator",
        script=(submit(job("train", "Mirrored", worker=1, evaluator=1)),),
        ends={"evaluator": (None,)},
        phases=SUCCEEDED,
    ),
    Scenario(name="multi-worker", script=(submit(job("train", worker=3)),), phases=SUCCEEDED),
    Scenario(
        name="parameter-server",
        script=(submit(job("train", "ParameterServer", chief=1, worker=2, ps=1)),),
        phases=SUCCEEDED,
    ),
    Scenario(
        name="custom",
        script=(submit(job("train", "Custom", chief=1, worker=1, ps=1)),),
        ends={"worker": (None,)},
        phases=SUCCEEDED,
    ),
)

ENDINGS = (
    Scenario(
        name="permanent-failure", script=(submit(MWM),), ends={"worker-0": (None,), "worker-1": (1,)}, phases=FAILED
    ),
    Scenario(
        name="retryable-failure",
        script=(submit(MWM),),
        ends={"worker": (143, 0)},
        forgives={f"{STATUS}lastFailure/index": "both fail, and the event of the first may be missed"},
        phases=SUCCEEDED,
    ),
    Scenario(
        name="budget-spent",
        script=(submit(job("train", worker=2, run_policy={"backoffLimit": 1})),),
        ends={"worker-0": (137,), "worker-1": (None,)},
        phases=FAILED,
    ),
    Scenario(
        name="expires",
        script=(
            submit(job("train", worker=1, run_policy={"ttlSecondsAfterFinished": 20})),
            Step(gone("train"), nothing),
        ),
    ),
    Scenario(
        name="active-deadline",
        script=(submit(job("train", worker=2, run_policy={"activeDeadlineSeconds": 90})),),
        ends=FOREVER,
        phases=FAILED,
    ),
    Scenario(
        name="clean-all",
        script=(
            submit(job("train", worker=2, run_policy={"cleanPodPolicy": "All"})),
            Step(ended("train", 2), nothing),
            Step(no_pods("train"), nothing),
        ),
        phases=SUCCEEDED,
    ),
)

LOSSES = (
    Scenario(
        name="recorded-success-vanishes",
        script=(
            submit(job("train", "Custom", worker=2, spec={"successPolicy": "AllWorkers"})),
            Step(training("train"), finish("train-worker-0", 0)),
            Step(counts("train", "succeeded", 1), vanish("train-worker-0")),
            Step(after(60), finish("train-worker-1", 0)),
        ),
        ends=FOREVER,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="evicted",
        script=(submit(MWM), Step(training("train"), evict("train-worker-1"))),
        ends=SECOND_TIME,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="vanished",
        script=(
            submit(MWM),
            Step(training("train"), nothing),
            Step(shows("train", "Running", "True"), vanish("train-worker-0")),
        ),
        ends=SECOND_TIME,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="drained",
        script=(
            submit(MWM),
            Step(training("train"), nothing),
            Step(shows("train", "Running", "True"), delete("Pod", "train-worker-1")),
        ),
        ends=SECOND_TIME,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="vanished-while-starting",
        script=(submit(MWM), Step(created("train", 2), vanish("train-worker-0"))),
        forgives=dict.fromkeys(
            (
                f"{STATUS}disruptions",
                f"{STATUS}consecutiveDisruptions",
                f"{STATUS}lastFailure",
                f"{STATUS}conditions/Restarting",
            ),
            STARTING,
        ),
        phases=SUCCEEDED,
    ),
)

SERVERS = job("train", "ParameterServer", chief=1, worker=2, ps=1)
SECOND_CHIEF = {"chief": (None, 0)}
"""The chief goes on until the gang is complete for the second time."""

REPLICAS = (
    Scenario(
        name="worker-alone", script=(submit(SERVERS),), ends={"worker-1": (137, None), **SECOND_CHIEF}, phases=SUCCEEDED
    ),
    Scenario(name="chief-alone", script=(submit(SERVERS),), ends={"chief": (143, 0)}, phases=SUCCEEDED),
    Scenario(
        name="server-and-chief",
        script=(submit(SERVERS),),
        ends={"ps-0": (137, None), **SECOND_CHIEF},
        phases=SUCCEEDED,
    ),
    Scenario(
        name="worker-drained",
        script=(
            submit(SERVERS),
            Step(training("train"), nothing),
            Step(shows("train", "Running", "True"), delete("Pod", "train-worker-1")),
        ),
        ends=SECOND_CHIEF,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="worker-alone-without-room",
        script=(
            submit(SERVERS),
            Step(training("train"), apply(quota(pods="1"))),
            Step(shows("train", "Created", "True", "QuotaExceeded"), delete("ResourceQuota", "quota")),
        ),
        ends={"worker-1": (137, None), **SECOND_CHIEF},
        phases=SUCCEEDED,
    ),
    Scenario(
        name="worker-for-good", script=(submit(SERVERS),), ends={"worker-1": (1,), "chief": (None,)}, phases=FAILED
    ),
    Scenario(
        name="custom-replica",
        script=(submit(job("train", "Custom", chief=1, worker=2, run_policy={"restartScope": "Replica"})),),
        ends={"worker-0": (None,), "worker-1": (137, None), **SECOND_CHIEF},
        phases=SUCCEEDED,
    ),
    Scenario(
        name="evaluator-alone",
        script=(submit(job("train", "Mirrored", worker=1, evaluator=1)),),
        ends={"evaluator": (137, None), "worker": (None, 0)},
        phases=SUCCEEDED,
    ),
    Scenario(
        name="evaluator-for-good",
        script=(submit(job("train", "Mirrored", worker=1, evaluator=1)),),
        ends={"evaluator": (1,), "worker": (None,)},
        phases=RUNNING,
    ),
)

TWO_NODES = ("node-1", "node-2")
NODES = (
    Scenario(
        name="node-lost",
        script=(
            submit(MWM),
            Step(training("train"), nothing),
            Step(shows("train", "Running", "True"), lose_node("node-2")),
        ),
        ends=SECOND_TIME,
        nodes=TWO_NODES,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="node-lost-under-servers",
        script=(
            submit(SERVERS),
            Step(training("train"), nothing),
            Step(shows("train", "Running", "True"), lose_node("node-2")),
        ),
        ends=SECOND_CHIEF,
        nodes=TWO_NODES,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="node-lost-while-deleting",
        script=(
            submit(MWM),
            Step(training("train"), nothing),
            Step(shows("train", "Running", "True"), then(lose_node("node-2"), suspend("train", True))),
            Step(no_pods("train"), nothing),
        ),
        ends=FOREVER,
        nodes=TWO_NODES,
        phases={"train": "Suspended"},
    ),
)

REFUSALS = (
    Scenario(
        name="quota-then-room",
        script=(
            Step(at_once, then(apply(quota(pods="1")), apply(MWM))),
            Step(shows("train", "Created", "False", "QuotaExceeded"), delete("ResourceQuota", "quota")),
        ),
        phases=SUCCEEDED,
    ),
    Scenario(
        name="gpu-quota-for-ever",
        script=(
            Step(at_once, then(apply(quota(gpus="1")), apply(MWM))),
            Step(shows("train", "Created", "False"), nothing),
            Step(after(60), delete("TFGPUJob", "train")),
        ),
    ),
    Scenario(
        name="template-refused-then-edited",
        script=(
            submit(job("train", worker=2, spec=_MISFIT)),
            Step(
                shows("train", "Created", "False", "TemplateRefused"),
                edit("train", replicaSpecs={"worker": {"replicas": 2}}),
            ),
        ),
        phases=SUCCEEDED,
    ),
    Scenario(
        name="forbidden-then-allowed",
        script=(
            Step(at_once, then(refuse(_forbid_worker_1), apply(MWM))),
            Step(shows("train", "Created", "False", "Forbidden"), refuse_no_more),
        ),
        phases=SUCCEEDED,
    ),
    Scenario(
        name="forbidden-and-fail-policy",
        script=(
            Step(
                at_once,
                then(refuse(_forbid_worker_1), apply(job("train", worker=2, run_policy={"startPolicy": "Fail"}))),
            ),
        ),
        forgives={"/Service default/train": "the job may be over before its service is created"},
        phases=FAILED,
    ),
    Scenario(
        name="foreign-pod",
        script=(
            Step(at_once, then(apply(foreign_pod("train-worker-1")), apply(MWM))),
            Step(shows("train", "Accepted", "False", "NameTaken"), delete("Pod", "train-worker-1")),
        ),
        phases=SUCCEEDED,
    ),
    Scenario(
        name="foreign-labelled-pod",
        script=(
            Step(at_once, then(apply(foreign_pod("train-worker-1", **{names.LABEL_JOB_NAME: "train"})), apply(MWM))),
            Step(shows("train", "Accepted", "False", "NameTaken"), nothing),
            Step(after(8), delete("Pod", "train-worker-1")),
        ),
        phases=SUCCEEDED,
    ),
    Scenario(
        name="foreign-service",
        script=(
            Step(at_once, then(apply(foreign_service("train")), apply(MWM))),
            Step(shows("train", "Accepted", "False", "NameTaken"), delete("Service", "train")),
        ),
        phases=SUCCEEDED,
    ),
    Scenario(name="invalid", script=(submit(job("train", "MultiWorkerMirrored", worker=2, ps=1)),), phases=PENDING),
    Scenario(
        name="unschedulable",
        script=(
            submit(job("train", worker=2, run_policy={"startDeadlineSeconds": 30})),
            Step(
                shows("train", "Created", "False", "StartDeadlineExceeded"),
                lambda world: setattr(world.scheduler, "gpus", 2),
            ),
        ),
        schedulable_gpus=1,
        phases=SUCCEEDED,
    ),
)

PEOPLE = (
    Scenario(
        name="deleted-while-creating",
        script=(submit(MWM), Step(created("train", 1), delete("TFGPUJob", "train"))),
    ),
    Scenario(
        name="deleted-once-accepted",
        script=(submit(MWM), Step(shows("train", "Accepted", "True"), delete("TFGPUJob", "train"))),
    ),
    Scenario(
        name="deleted-while-running",
        script=(submit(MWM), Step(running("train", 2), delete("TFGPUJob", "train"))),
        ends=FOREVER,
    ),
    Scenario(
        name="deleted-in-the-foreground",
        script=(submit(MWM), Step(created("train", 1), delete("TFGPUJob", "train", "Foreground"))),
        ends=FOREVER,
    ),
    Scenario(
        name="orphaned",
        script=(
            submit(MWM),
            Step(running("train", 2), nothing),
            Step(shows("train", "Running", "True"), delete("TFGPUJob", "train", "Orphan")),
        ),
        ends=FOREVER,
    ),
    Scenario(
        name="recreated",
        script=(
            submit(MWM),
            Step(running("train", 2), then(delete("TFGPUJob", "train"), apply(MWM))),
        ),
        phases=SUCCEEDED,
    ),
    Scenario(
        name="recreated-while-creating",
        script=(
            submit(MWM),
            Step(created("train", 1), then(delete("TFGPUJob", "train"), apply(job("train", worker=3)))),
        ),
        phases=SUCCEEDED,
    ),
    Scenario(
        name="suspended-and-resumed",
        script=(
            submit(MWM),
            Step(training("train"), suspend("train", True)),
            Step(no_pods("train"), nothing),
            Step(after(20), suspend("train", False)),
        ),
        ends=SECOND_TIME,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="suspended-from-the-start",
        script=(
            submit(job("train", worker=2, run_policy={"suspend": True})),
            Step(shows("train", "Suspended", "True"), nothing),
            Step(after(5), suspend("train", False)),
        ),
        phases=SUCCEEDED,
    ),
    Scenario(
        name="suspended-parameter-server",
        script=(
            submit(job("train", "ParameterServer", chief=1, worker=1, ps=1)),
            Step(training("train"), suspend("train", True)),
            Step(no_pods("train"), nothing),
        ),
        ends=FOREVER,
        phases={"train": "Suspended"},
    ),
    Scenario(
        name="edited-while-running",
        script=(
            submit(MWM),
            Step(shows("train", "Running", "True"), edit("train", replicaSpecs={"worker": {"replicas": 3}})),
            Step(
                shows("train", "Accepted", "False", "ImmutableFieldChanged"),
                edit("train", replicaSpecs={"worker": {"replicas": 2}}),
            ),
        ),
        ends=FOREVER,
        phases=RUNNING,
    ),
    Scenario(
        name="managed-by-another",
        script=(submit(job("train", worker=2, run_policy={"managedBy": "kueue.x-k8s.io/multikueue"})),),
        phases={"train": ""},
    ),
)

OPERATORS = (
    Scenario(name="upgraded", script=(submit(MWM), Step(running("train", 2), _upgrade)), ends=FOREVER, phases=RUNNING),
    Scenario(
        name="upgraded-while-creating", script=(submit(MWM), Step(created("train", 1), _upgrade)), phases=SUCCEEDED
    ),
    Scenario(
        name="leader-killed",
        script=(submit(MWM), Step(created("train", 1), kill("operator-a"))),
        operators=("operator-a", "operator-b"),
        phases=SUCCEEDED,
    ),
    Scenario(
        name="leader-lost",
        script=(submit(MWM), Step(created("train", 1), lose("operator-a"))),
        operators=("operator-a", "operator-b"),
        phases=SUCCEEDED,
    ),
    Scenario(
        name="leader-lost-to-a-late-standby",
        script=(
            submit(MWM),
            Step(training("train"), nothing),
            Step(shows("train", "Running", "True"), then(lose("operator-a"), evict("train-worker-0"))),
        ),
        operators=("operator-a", "operator-b"),
        lags={"operator-b": 30.0},
        ends=SECOND_TIME,
        phases=SUCCEEDED,
    ),
    Scenario(
        name="leader-stopped",
        script=(submit(MWM), Step(created("train", 1), stop("operator-a")), Step(after(30), start("operator-a"))),
        operators=("operator-a", "operator-b"),
        ends={"worker": (143, 0)},
        forgives={f"{STATUS}lastFailure/index": "both fail, and the event of the first may be missed"},
        phases=SUCCEEDED,
    ),
    Scenario(
        name="two-jobs",
        script=(
            submit(MWM),
            submit(job("other", "ParameterServer", chief=1, worker=1, ps=1)),
            Step(running("train", 2), delete("TFGPUJob", "other")),
        ),
        operators=("operator-a", "operator-b"),
        phases=SUCCEEDED,
    ),
)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (*STRATEGIES, *ENDINGS, *LOSSES, *REPLICAS, *NODES, *REFUSALS, *PEOPLE, *OPERATORS)
}
