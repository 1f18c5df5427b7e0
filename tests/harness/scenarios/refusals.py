"""What the API server, or another client, prevents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.harness.resources import Object, with_meta
from tests.harness.scenario import (
    Step,
    after,
    apply,
    at_once,
    created,
    delete,
    edit,
    evict,
    finish,
    foreign_pod,
    foreign_service,
    job,
    no_pods,
    nothing,
    quota,
    refuse,
    refuse_no_more,
    shows,
    story,
    then,
)
from tests.harness.scenarios.common import FAILED, MWM, PENDING, SECOND_TIME, STATUS, once_it_runs, submit
from tests.harness.world import World

from tfgpujob import names
from tfgpujob.kube.errors import ApiError


def refuse_pod(pod: str, error: ApiError) -> Callable[[str, str, Mapping[str, Any]], ApiError | None]:
    def rule(verb: str, kind: str, obj: Mapping[str, Any]) -> ApiError | None:
        return error if (verb, kind, obj["metadata"]["name"]) == ("create", "Pod", pod) else None

    return rule


def forbid(pod: str) -> Callable[[str, str, Mapping[str, Any]], ApiError | None]:
    error = ApiError(403, "Forbidden", f'pods "{pod}" is forbidden: violates the policy "baseline"')
    return refuse_pod(pod, error)


def reject(pod: str) -> Callable[[str, str, Mapping[str, Any]], ApiError | None]:
    """An admission policy that calls the pod itself wrong."""
    return refuse_pod(pod, ApiError(422, "Invalid", f'Pod "{pod}" is invalid: spec: denied by the policy "baseline"'))


DENIED = ApiError(400, "BadRequest", 'admission webhook "a.example.com" denied the request: no team')
"""By a webhook whose answer has a code of its own."""


def _inject(world: World) -> None:
    """As a service mesh, a LimitRange and a policy engine: containers before and beside ours, defaults, a selector."""

    def inject(pod: Object) -> Object:
        spec = pod["spec"]
        requests = {"resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}}
        mesh = {"image": "example.com/mesh:1", **requests}
        containers = [{"name": "mesh", **mesh}, *({**requests, **container} for container in spec["containers"])]
        inits = [{"name": "mesh-init", **mesh}, *spec.get("initContainers", ())]
        node = {**spec.get("nodeSelector", {}), "pool": "gpus"}
        added = {"containers": containers, "initContainers": inits, "nodeSelector": node}
        return {**with_meta(pod, annotations={"mesh/injected": "true"}), "spec": {**spec, **added}}

    world.server.mutates = inject


_MISFIT = {
    "replicaSpecs": {
        "worker": {
            "replicas": 2,
            "template": {"metadata": {"labels": {"Upper.example/team": "a"}}},
        }
    }
}


_WHICH_POD = {f"{STATUS}lastFailure/message": "which pod was refused, when a fault changed their order"}
_PAUSED_TOO_LONG = {
    f"{STATUS}lastFailure/{field}": "an operator that is paused for longer than the deadline sees no pod wait"
    for field in ("cause", "action")
}
_WHO_WAS_MISSING = {
    f"{STATUS}{where}": "who was missing when it was noticed"
    for where in (
        "lastFailure/message",
        *(f"conditions/{ended}/message" for ended in ("Failed", "Finished", "Running")),
        "replicaStatuses/worker/failed",
    )
}


_LABELLED = {names.LABEL_JOB_NAME: "train"}
_WATCHED = job("train", "Mirrored", worker=1, evaluator=1)


def _add_a_gpu(world: World) -> None:
    world.scheduler.gpus += 1


REFUSALS = (
    story("changed-by-admission", Step(at_once, _inject), submit(MWM)),
    story(
        "changed-by-admission-and-lost",
        Step(at_once, _inject),
        submit(MWM),
        *once_it_runs(evict("train-worker-1")),
        ends=SECOND_TIME,
    ),
    story(
        "quota-then-room",
        Step(at_once, then(apply(quota(pods="1")), apply(MWM))),
        Step(shows("train", "Created", "False", "QuotaExceeded"), delete("ResourceQuota", "quota")),
        forgives=_WHICH_POD,
    ),
    story(
        "gpu-quota-for-ever",
        Step(at_once, then(apply(quota(gpus="1")), apply(MWM))),
        Step(shows("train", "Created", "False"), nothing),
        Step(after(60), delete("TFGPUJob", "train")),
        phases={},
    ),
    story(
        "template-refused-then-edited",
        submit(job("train", worker=2, spec=_MISFIT)),
        Step(
            shows("train", "Created", "False", "TemplateRefused"),
            edit("train", replicaSpecs={"worker": {"replicas": 2}}),
        ),
        forgives=_WHICH_POD,
    ),
    story(
        "forbidden-then-allowed",
        Step(at_once, then(refuse(forbid("train-worker-1")), apply(MWM))),
        Step(shows("train", "Created", "False", "Forbidden"), refuse_no_more),
    ),
    story(
        "denied-by-a-webhook-then-allowed",
        Step(at_once, then(refuse(refuse_pod("train-worker-1", DENIED)), apply(MWM))),
        Step(shows("train", "Created", "False"), refuse_no_more),
    ),
    story(
        "forbidden-and-fail-policy",
        Step(
            at_once,
            then(refuse(forbid("train-worker-1")), apply(job("train", worker=2, run_policy={"startPolicy": "Fail"}))),
        ),
        forgives={
            "/Service default/train": "the job may be over before its service is created",
            f"{STATUS}conditions/Created": "said early, when the other create had no answer yet",
        },
        phases=FAILED,
    ),
    story(
        "evaluator-forbidden-then-allowed",
        Step(at_once, then(refuse(forbid("train-evaluator-0")), apply(job("train", worker=2, evaluator=1)))),
        Step(shows("train", "Created", "True", "Forbidden"), refuse_no_more),
        ends={"evaluator": (None,)},
    ),
    story(
        "foreign-pod",
        Step(at_once, then(apply(foreign_pod("train-worker-1")), apply(MWM))),
        Step(shows("train", "Accepted", "False", "NameTaken"), delete("Pod", "train-worker-1")),
    ),
    story(
        "foreign-labelled-pod",
        Step(at_once, then(apply(foreign_pod("train-worker-1", **_LABELLED)), apply(MWM))),
        Step(shows("train", "Accepted", "False", "NameTaken"), nothing),
        Step(after(8), delete("Pod", "train-worker-1")),
    ),
    story(
        "foreign-evaluator",
        Step(at_once, then(apply(foreign_pod("train-evaluator-0", **_LABELLED)), apply(_WATCHED))),
        Step(shows("train", "Accepted", "False", "NameTaken"), nothing),
        Step(shows("train", "Running", "True"), delete("Pod", "train-evaluator-0")),
        Step(shows("train", "Accepted", "True"), finish("train-worker-0", 0)),
        ends={"evaluator": (None,), "worker": (None,)},
    ),
    story(
        "foreign-service",
        Step(at_once, then(apply(foreign_service("train")), apply(MWM))),
        Step(shows("train", "Accepted", "False", "NameTaken"), delete("Service", "train")),
    ),
    story("invalid", submit(job("train", "MultiWorkerMirrored", worker=2, ps=1)), phases=PENDING),
    # One worker's init container waits for the other, and gives up when the start does, or before an
    # operator that was away.
    story(
        "unschedulable",
        submit(job("train", worker=2, run_policy={"startDeadlineSeconds": 30})),
        Step(shows("train", "Created", "False", "StartDeadlineExceeded"), _add_a_gpu),
        forgives=_WHO_WAS_MISSING,
        schedulable_gpus=1,
    ),
    story(
        "half-created-too-late",
        Step(
            at_once,
            then(
                refuse(refuse_pod("train-worker-1", ApiError(0, "Timeout", "no answer from the API server"))),
                apply(job("train", worker=2, run_policy={"startDeadlineSeconds": 30})),
            ),
        ),
        Step(created("train", 1), nothing),
        Step(no_pods("train"), refuse_no_more),
        forgives=_WHO_WAS_MISSING | {f"{STATUS}lastFailure": "with a fault besides, the silence counts as a refusal"},
    ),
    story(
        "unschedulable-and-fail-policy",
        submit(
            job(
                "train",
                worker=2,
                run_policy={"startDeadlineSeconds": 30, "startPolicy": "Fail", "cleanPodPolicy": "All"},
            )
        ),
        forgives=_WHO_WAS_MISSING,
        schedulable_gpus=1,
        phases=FAILED,
    ),
    story(
        "schedule-timeout",
        submit(job("train", worker=2, run_policy={"schedulingPolicy": {"scheduleTimeoutSeconds": 20}})),
        Step(shows("train", "Created", "False", "ScheduleTimeoutExceeded"), _add_a_gpu),
        forgives=_WHO_WAS_MISSING,
        schedulable_gpus=1,
    ),
    story(
        "unschedulable-while-invalid",
        submit(job("train", worker=2, run_policy={"startDeadlineSeconds": 30})),
        Step(created("train", 2), nothing),
        Step(shows("train", "Created", "True"), edit("train", strategy="Nonsense")),
        Step(shows("train", "Created", "False", "StartDeadlineExceeded"), _add_a_gpu),
        Step(no_pods("train"), edit("train", strategy="MultiWorkerMirrored")),
        forgives=_WHO_WAS_MISSING,
        schedulable_gpus=1,
    ),
    story(
        "edited-while-unschedulable",
        submit(job("train", worker=3, run_policy={"startDeadlineSeconds": 30})),
        Step(shows("train", "Created", "True"), edit("train", replicaSpecs={"worker": {"replicas": 2}})),
        forgives=_WHO_WAS_MISSING,
        schedulable_gpus=2,
    ),
    story(
        "image-missing-then-pushed",
        submit(job("train", worker=2, run_policy={"startDeadlineSeconds": 30})),
        Step(
            shows("train", "Created", "False", "StartDeadlineExceeded"),
            lambda world: world.kubelet.missing_images.clear(),
        ),
        forgives={**_WHO_WAS_MISSING, **_PAUSED_TOO_LONG},
        missing_images=frozenset({"example.com/train:1"}),
    ),
)
