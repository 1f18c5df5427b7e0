"""The pod that shows a job's events: what it reads, as whom, and when it can't."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.client.started import TRAINER, started

from tfgpujob.client import Job, TensorBoardError
from tfgpujob.client.viewer import viewer_pod
from tfgpujob.core.observed.snapshot import Object

MOUNT = {"name": "root", "mountPath": "/output"}
HOST = {
    "spec": {
        "securityContext": {"runAsUser": 0},
        "containers": [{"name": "tensorflow", "volumeMounts": [MOUNT]}],
        "volumes": [{"name": "root", "hostPath": {"path": "/"}}],
    }
}


def test_the_pod_reads_the_claim_and_passes_pod_security_restricted() -> None:
    pod = viewer_pod(started())
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert container["image"] == "example.com/train:1"
    assert container["command"][:3] == ["tensorboard", "--logdir", "/output/tensorboard"]
    assert {"name": "tfgpu-output", "mountPath": "/output", "readOnly": True} in container["volumeMounts"]
    assert {"name": "tfgpu-output", "persistentVolumeClaim": {"claimName": "out"}} in spec["volumes"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("said", ["False", "of an older spec", "nothing"])
def test_what_the_operator_has_not_accepted_gets_no_pod(said: str) -> None:
    """Its author may have written since what the operator refuses him, and this pod is made with another's rights."""
    job = started(trainer={**TRAINER, "output": {}}, replicaSpecs={"worker": {"template": HOST}})
    (condition,) = job.raw["status"]["conditions"]
    match said:
        case "False":
            condition["status"] = "False"
        case "nothing":
            job.raw["status"]["conditions"] = []
        case _:
            job.raw["metadata"]["generation"] = 2
    with pytest.raises(TensorBoardError, match=r"has not accepted the spec of curves as it is now; see tfgpu describe"):
        viewer_pod(job)


def test_the_pod_goes_with_the_job_and_is_none_of_the_operators() -> None:
    metadata = viewer_pod(started())["metadata"]
    assert [(owner["uid"], "controller" in owner) for owner in metadata["ownerReferences"]] == [("u-1", False)]
    assert not any(label.startswith("tfgpu.dev/") for label in metadata["labels"])


@pytest.mark.parametrize("path", ["/output", "/output/"])
def test_what_the_template_mounts_there_is_what_is_shown(path: str) -> None:
    mount = {"name": "nfs", "mountPath": path, "subPath": "runs"}
    container = {"name": "tensorflow", "volumeMounts": [mount]}
    volume = {"name": "nfs", "nfs": {"server": "files", "path": "/"}}
    template = {"spec": {"containers": [container], "volumes": [volume], "nodeSelector": {"pool": "gpu"}}}
    trainer = {**TRAINER, "output": {}}
    spec = viewer_pod(started(trainer=trainer, replicaSpecs={"worker": {"template": template}}))["spec"]
    assert {**mount, "readOnly": True} in spec["containers"][0]["volumeMounts"]
    assert volume in spec["volumes"]
    assert spec["nodeSelector"] == {"pool": "gpu"}


def with_template(pod_spec: Object, **trainer: Any) -> Job:
    return started(
        trainer={**TRAINER, "output": {}, **trainer}, replicaSpecs={"worker": {"template": {"spec": pod_spec}}}
    )


def mounted(*, env: Sequence[Object] = (), volume: Object | None = None, **mount: Any) -> Job:
    """A job whose template mounts a volume where the trainer writes."""
    container = {
        "name": "tensorflow",
        "env": [*env],
        "volumeMounts": [{"name": "nfs", "mountPath": "/output", **mount}],
    }
    volumes = [{"name": "nfs", **(volume or {"nfs": {"server": "files", "path": "/"}})}]
    return with_template({"containers": [container], "volumes": volumes})


def field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("expression", "path"),
    [
        ("runs/$(TFGPU_JOB)/$(TFGPU_ATTEMPT).$(TFGPU_REPLICA_RESTART)", "runs/curves/3.2"),
        ("$(POD)/$(WHO)", "curves-worker-0/by-ann$(POD)"),
        ("$$(POD)-$(SPACE)$(ATTEMPT)", "$(POD)-team3"),
    ],
)
def test_a_path_with_variables_is_the_one_that_the_jobs_pod_has(expression: str, path: str) -> None:
    env = [
        field("POD", "metadata.name"),
        field("SPACE", "metadata.namespace"),
        field("ATTEMPT", "metadata.labels['tfgpu.dev/attempt']"),
        {"name": "WHO", "value": "by-ann$$(POD)"},
    ]
    made = mounted(env=env, subPathExpr=expression)
    made.raw["status"].update(attempt=3, restartRecords=[{"role": "worker", "index": 0, "restarts": 2}])
    mount = viewer_pod(made)["spec"]["containers"][0]["volumeMounts"][0]
    assert mount == {"name": "nfs", "mountPath": "/output", "subPath": path, "readOnly": True}


@pytest.mark.parametrize(
    "variable",
    [
        field("WHERE", "spec.nodeName"),
        {"name": "WHERE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "WHERE", "value": "$(FROM_A_CONFIG_MAP)"},
    ],
)
def test_a_path_that_only_the_node_knows_is_refused(variable: Object) -> None:
    with pytest.raises(TensorBoardError, match=r"a subPathExpr with WHERE, whose value only the node knows; use one"):
        viewer_pod(mounted(env=[variable], subPathExpr="runs/$(WHERE)"))


def test_a_volume_of_the_pods_own_is_read_through_its_claim() -> None:
    spec = viewer_pod(mounted(volume={"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}))["spec"]
    assert {"name": "nfs", "persistentVolumeClaim": {"claimName": "curves-worker-0-nfs"}} in spec["volumes"]


@pytest.mark.parametrize(
    ("of_pod", "of_container", "expected"),
    [
        ({}, {}, {"runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}),
        ({}, {"runAsUser": 1001, "runAsGroup": 50}, {"runAsUser": 1001, "runAsGroup": 50}),
        ({"runAsUser": 7, "fsGroup": 8}, {"runAsUser": 1001}, {"runAsUser": 1001, "fsGroup": 8}),
        ({}, {"seLinuxOptions": {"level": "s0:c1,c2"}}, {"seLinuxOptions": {"level": "s0:c1,c2"}}),
        (
            {},
            {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}},
            {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}},
        ),
        (
            {"seccompProfile": {"type": "Unconfined"}, "sysctls": [{"name": "a", "value": "b"}]},
            {"seccompProfile": {"type": "Unconfined"}, "privileged": False},
            {"seccompProfile": {"type": "RuntimeDefault"}},
        ),
    ],
)
def test_it_may_read_what_the_container_writes(of_pod: Object, of_container: Object, expected: Object) -> None:
    """And passes Pod Security "restricted", whatever the training needs."""
    template = {"securityContext": of_pod, "containers": [{"name": "tensorflow", "securityContext": of_container}]}
    made = with_template(template, output={"claim": "out"})
    context = viewer_pod(made)["spec"]["securityContext"]
    assert {key: context[key] for key in expected} == expected
    assert context["runAsNonRoot"] is True
    assert not {"sysctls", "privileged"} & context.keys()


def test_a_spec_that_was_spoilt_later_is_no_crash() -> None:
    made = started()
    made.raw["spec"]["replicaSpecs"] = {"worker": {"replicas": "many"}}
    with pytest.raises(TensorBoardError, match="a spec that is refused; see tfgpu describe curves"):
        viewer_pod(Job(made.raw))


def test_an_own_program_says_where_its_events_are() -> None:
    mount = {"name": "logs", "mountPath": "/logs"}
    volume = {"name": "logs", "persistentVolumeClaim": {"claimName": "logs"}}
    pod_spec = {
        "containers": [{"name": "tensorflow", "volumeMounts": [mount]}],
        "volumes": [volume],
        "securityContext": {"runAsUser": 0},
    }
    own = started(trainer=None, replicaSpecs={"worker": {"template": {"spec": pod_spec}}})
    with pytest.raises(TensorBoardError, match="name it with --logdir"):
        viewer_pod(own)
    spec = viewer_pod(own, logdir="/logs/fit", image="board:1")["spec"]
    assert spec["containers"][0]["image"] == "board:1"
    assert volume in spec["volumes"]
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (0, False)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (
            started(trainer={**TRAINER, "output": {}}),
            "name a claim in spec.trainer.output.claim; while the pod is there: ",
        ),
        (Job({**started().raw, "status": {}}), "has written nothing; wait for it: tfgpu wait curves --for Running"),
    ],
)
def test_events_that_nobody_can_read_are_said_to_be_so(made: Job, problem: str) -> None:
    with pytest.raises(TensorBoardError, match=problem):
        viewer_pod(made)
