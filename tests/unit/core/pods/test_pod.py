"""Pods in detail: what the whole pictures in golden/ don't show."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.pods.built import built, main

from tfgpujob import names
from tfgpujob.api.rules.template import OWN_ENV
from tfgpujob.names import Role


def env(pod: dict[str, Any]) -> dict[str, str]:
    """Each is the operator's own, which a template may not set."""
    assert {v["name"] for v in main(pod)["env"] if v["name"].startswith("TFGPU_")} <= OWN_ENV
    return {variable["name"]: variable.get("value", "") for variable in main(pod)["env"]}


def with_template(template: dict[str, Any]) -> dict[str, Any]:
    return make.job("OneDevice", worker={"template": template}, trainer=None, image="mine:1")


@pytest.mark.parametrize(
    ("strategy", "parts", "role", "gpus"),
    [
        ("OneDevice", {}, Role.WORKER, "1"),
        ("OneDevice", {"worker": {"gpus": 0}}, Role.WORKER, None),
        ("MultiWorkerMirrored", {"gpu": {"perReplica": 4}}, Role.WORKER, "4"),
        (
            "MultiWorkerMirrored",
            {"worker": 1, "evaluator": {"gpus": 0}, "gpu": {"perReplica": 4}},
            Role.EVALUATOR,
            None,
        ),
        ("ParameterServer", {"worker": 1, "ps": 1, "gpu": {"perReplica": 2}}, Role.PS, None),
        ("ParameterServer", {"worker": 1, "ps": 1, "gpu": {"perReplica": 2}}, Role.CHIEF, None),
        ("ParameterServer", {"worker": 1, "ps": 1, "gpu": {"perReplica": 2}}, Role.WORKER, "2"),
        ("ParameterServer", {"worker": 1, "ps": {"gpus": 1}}, Role.PS, "1"),
        ("Custom", {}, Role.WORKER, None),
        ("Custom", {"gpu": {"perReplica": 1}}, Role.WORKER, "1"),
    ],
)
def test_gpus_are_requested(strategy: str, parts: dict[str, Any], role: Role, gpus: str | None) -> None:
    pod = built(make.job(strategy, **parts), role)
    assert (main(pod)["resources"].get("limits") or {}).get("nvidia.com/gpu") == gpus
    assert env(pod)["TFGPU_GPUS"] == (gpus or "0")


def test_devices_by_a_resource_claim_are_not_asked_for_twice() -> None:
    """Under DRA the claim brings the GPUs; the trainer gets their number, and hides none of them."""
    claims = [{"name": "gpus"}]
    container: dict[str, Any] = {"name": "tensorflow", "resources": {"claims": claims}}
    template = {"spec": {"resourceClaims": [{"name": "gpus"}], "containers": [container]}}
    pod = built(make.job("OneDevice", worker={"gpus": 1, "template": template}))
    assert main(pod)["resources"] == {"claims": claims}
    assert env(pod)["TFGPU_GPUS"] == "1"
    container["resources"]["limits"] = {"nvidia.com/gpu": 1}
    pod = built(make.job("OneDevice", worker={"gpus": 1, "template": template}))
    assert main(pod)["resources"]["limits"] == {"nvidia.com/gpu": 1}, "a network card by claim, GPUs as ever"


def test_a_container_is_added_to_a_template_of_sidecars() -> None:
    pod = built(
        make.job("OneDevice", worker={"template": {"spec": {"containers": [{"name": "logger", "image": "l:1"}]}}})
    )
    assert [container["name"] for container in pod["spec"]["containers"]] == ["tensorflow", "logger"]


@pytest.mark.parametrize(
    ("memory", "growth"), [({}, "true"), ({"growth": False}, "false"), ({"limitMiB": 100}, "false")], ids=str
)
def test_memory_grows_unless_it_is_limited(memory: dict[str, Any], growth: str) -> None:
    env = {e["name"]: e["value"] for e in main(built(make.job("OneDevice", gpu={"memory": memory})))["env"]}
    assert env["TFGPU_GPU_MEMORY_GROWTH"] == growth


@pytest.mark.parametrize("growth", [True, False, None])
def test_memory_of_an_own_program_grows_if_that_is_said(growth: bool | None) -> None:
    job = with_template({})
    job["spec"]["gpu"] = {"memory": {} if growth is None else {"growth": growth}}
    env = {e["name"]: e["value"] for e in main(built(job))["env"]}
    assert env.get("TF_FORCE_GPU_ALLOW_GROWTH") == ("true" if growth else None)
    of_trainer = main(built(make.job("OneDevice", gpu={"memory": {"growth": True}})))["env"]
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in {e["name"] for e in of_trainer}


def test_a_port_2222_of_the_template_is_kept() -> None:
    container = {"name": "tensorflow", "command": ["train"], "ports": [{"name": "grpc", "containerPort": 2222}]}
    pod = built(with_template({"spec": {"containers": [container]}}))
    assert main(pod)["ports"] == [{"name": "grpc", "containerPort": 2222}]


def test_autoscalers_leave_a_pod_alone_unless_the_job_or_its_template_says_otherwise() -> None:
    ours = names.AVOID_VOLUNTARY_DISRUPTION
    assert built(make.job("Custom"))["metadata"]["annotations"] == ours
    one = next(iter(ours))
    template = {"metadata": {"annotations": {one: "true"}}}
    assert built(with_template(template))["metadata"]["annotations"] == {**ours, one: "true"}
    assert "annotations" not in built(make.job("Custom", run={"voluntaryDisruption": "Allow"}))["metadata"]


def test_two_pods_share_nothing_that_one_could_change_for_the_other() -> None:
    job = make.job(worker={"replicas": 2, "template": {"spec": {"nodeSelector": {"a": "b"}}}})
    first, second = built(job, index=0), built(job, index=1)
    first["spec"]["nodeSelector"]["a"] = "c"
    assert second["spec"]["nodeSelector"] == {"a": "b"}
