"""GPUs by a resource claim: what the pods and their claim template say, and what follows from the count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Config, Creation, Kind, Object, Snapshot
from tfgpujob.core.reconcile import reconcile

CLASS: dict[str, Any] = {"deviceClassName": "gpu.nvidia.com", "count": 2}


def created(*strategy: str, config: Config = make.CONFIG, **job: Any) -> dict[str, Creation]:
    outcome = reconcile(Snapshot(make.job(*strategy, **job)), make.START, config)
    return {create.name: create for create in outcome.creates}


def training(create: Creation) -> Object:
    container: Object = next(c for c in create.body["spec"]["containers"] if c["name"] == names.CONTAINER)
    return container


def variable(create: Creation, name: str) -> str | None:
    return next((v["value"] for v in training(create)["env"] if v["name"] == name), None)


def test_a_pod_claims_by_the_template_that_it_needs() -> None:
    pod = created(worker=1, gpu={"claim": CLASS})["train-worker-0"]
    [template] = pod.needs
    assert template.kind is Kind.DEVICE_TEMPLATE
    assert template.body["apiVersion"] == "resource.k8s.io/v1"
    [owner] = template.body["metadata"]["ownerReferences"]
    assert owner["uid"] == make.JOB_UID
    assert template.body["spec"]["spec"]["devices"]["requests"] == [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 2}}
    ]
    claim = {"name": "tfgpu-gpu", "resourceClaimTemplateName": template.name}
    assert pod.body["spec"]["resourceClaims"] == [claim]
    assert training(pod)["resources"] == {"claims": [{"name": "tfgpu-gpu"}]}
    assert variable(pod, "TFGPU_GPUS") == "2"


def test_an_older_server_gets_the_version_that_it_serves() -> None:
    config = replace(make.CONFIG, device_template=Kind.DEVICE_TEMPLATE_V1BETA2)
    [template] = created(config=config, worker=1, gpu={"claim": CLASS})["train-worker-0"].needs
    assert template.body["apiVersion"] == "resource.k8s.io/v1beta2"


def test_a_template_of_somebody_elses_is_only_named() -> None:
    pod = created(worker=1, gpu={"claim": {"templateName": "four", "count": 4}})["train-worker-0"]
    assert pod.needs == ()
    assert pod.body["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "four"
    assert variable(pod, "TFGPU_GPUS") == "4"


def test_another_spec_has_another_template() -> None:
    """The spec of one can't be changed."""
    claims = (CLASS, {**CLASS, "count": 1}, {**CLASS, "selectors": ["true"]})
    made = [created(worker=1, gpu={"claim": claim})["train-worker-0"].needs[0].name for claim in claims]
    assert len(set(made)) == 3
    assert all(name.startswith("train-gpu-") for name in made)
    assert created(worker=2, gpu={"claim": CLASS})["train-worker-1"].needs[0].name == made[0]


def test_only_pods_that_would_have_gpus_claim_any() -> None:
    pods = created("ParameterServer", worker=1, ps=1, chief=1, gpu={"claim": CLASS})
    claiming = {name for name, create in pods.items() if create.body["spec"].get("resourceClaims")}
    assert claiming == {"train-worker-0"} == {name for name, create in pods.items() if create.needs}
    assert {variable(pods[name], "TFGPU_GPUS") for name in ("train-ps-0", "train-chief-0")} == {"0"}


def test_processes_and_memory_limits_follow_the_count() -> None:
    gpu = {"claim": CLASS, "processesPerGpu": 2, "memory": {"limitMiB": 8000}}
    pod = created(worker=1, gpu=gpu)["train-worker-0"]
    assert [port["containerPort"] for port in training(pod)["ports"]][:4] == [2222, 2223, 2224, 2225]
    assert variable(pod, "TFGPU_GPU_MEMORY_LIMIT_MIB") == "8000"


def test_gpu_time_counts_the_devices() -> None:
    world = World.running(make.job(worker=2, gpu={"claim": CLASS}))
    world.advance(minutes=1)
    world.exits("train-worker-1", 1)
    assert world.status["gpuTime"]["seconds"] == 2 * 2 * 60


def test_the_template_is_made_once_and_stays_over_restarts() -> None:
    world = World.running(make.job(worker=2, gpu={"claim": CLASS}))
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert (world.attempts(), sum(kind is Kind.DEVICE_TEMPLATE for kind, _ in world.objects)) == ({"2"}, 1)


def test_a_claim_that_the_server_refuses_names_the_field() -> None:
    world = World(make.job(worker=1, gpu={"claim": CLASS}))
    answer = (422, "spec.spec.devices.requests[0].exactly.selectors[0]: undeclared reference")
    world.refuse = lambda create: answer if create.kind is Kind.DEVICE_TEMPLATE else None
    world.settle()
    assert world.condition("Accepted") == "False/TemplateRefused"
    assert world.message("Accepted").startswith("spec.gpu.claim: ResourceClaimTemplate")
    assert world.pods == []


@pytest.mark.parametrize(
    ("config", "claim", "says"),
    [
        ({"device_template": None}, CLASS, "serves no ResourceClaimTemplates"),
        ({"device_template": None}, {"templateName": "a", "count": 1}, "serves no ResourceClaimTemplates"),
        ({"device_claims": False}, CLASS, "deviceClaims.enabled"),
    ],
)
def test_a_claim_that_nobody_would_answer_is_refused(config: dict[str, Any], claim: dict[str, Any], says: str) -> None:
    world = World.begun(make.job(worker=1, gpu={"claim": claim}), replace(make.CONFIG, **config))
    assert (world.condition("Accepted"), world.tries) == ("False/InvalidSpec", 0)
    assert world.message("Accepted").startswith("spec.gpu.claim: ")
    assert says in world.message("Accepted")


def test_a_template_of_somebody_elses_needs_no_right() -> None:
    config = replace(make.CONFIG, device_claims=False)
    assert "train-worker-0" in created(config=config, worker=1, gpu={"claim": {"templateName": "a", "count": 1}})
