"""Accepted=True says what the job's author should know beforehand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob.core.policies.acceptance import accept
from tfgpujob.names import Condition


def said(job: dict[str, Any]) -> str:
    builder = make.builder()
    accept(builder, make.parsed(job))
    assert builder.is_true(Condition.ACCEPTED)
    return builder.message(Condition.ACCEPTED)


CLAIMS = {
    "spec": {
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "one-gpu"}],
        "containers": [{"name": "tensorflow", "resources": {"claims": [{"name": "gpus"}]}}],
    }
}
ELASTIC = {"replicas": 4, "minReplicas": 2}
SAVED = {**make.TRAINER, "output": {"claim": "results"}}


def test_one_slice_a_pod_needs_no_advice() -> None:
    job = make.job(trainer=SAVED, gpu={"resourceName": "nvidia.com/mig-1g.10gb"})
    assert said(job) == "The spec is valid."


OWN_IMAGE = {"spec": {"containers": [{"name": "tensorflow", "image": "rocm:1"}]}}


@pytest.mark.parametrize(
    "parts",
    [
        {"image": "rocm:1"},
        {"worker": {"template": OWN_IMAGE}},
        {"worker": {"gpus": 0}},
        {"trainer": None, "image": "rocm:1"},
        {"gpu": {"resourceName": "example.com/gpu"}},
    ],
)
def test_gpus_of_another_maker_need_no_advice_with_an_image_for_them(parts: dict[str, Any]) -> None:
    job = make.job("OneDevice", **{"trainer": SAVED, "gpu": {"resourceName": "amd.com/gpu"}, **parts})
    assert said(job) == "The spec is valid."


@pytest.mark.parametrize("policy", [{}, {"priorityClass": "high", "scheduleTimeoutSeconds": 300}])
def test_a_job_without_surprises_needs_no_advice(policy: dict[str, Any]) -> None:
    assert said(make.job(trainer=SAVED, run={"schedulingPolicy": policy})) == "The spec is valid."


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (make.job("ParameterServer", worker=1, ps=1), "a chief: one was added"),
        (make.job("OneDevice"), "spec.trainer.output.claim is not set"),
        (make.job(gpu={"resourceName": "nvidia.com/mig-1g.10gb", "perReplica": 2}), "worker: 2 MIG slices a pod"),
        (
            make.job("OneDevice", trainer=SAVED, gpu={"resourceName": "amd.com/gpu"}),
            "the trainer's image has TensorFlow for NVIDIA's GPUs, and none for amd.com/gpu. Set spec.image to one of",
        ),
        (
            make.job(trainer=SAVED, run={"restartScope": "Replica"}),
            "spec.runPolicy.restartScope: Replica has no effect: MultiWorkerMirrored needs all",
        ),
        (make.job("Custom", run={"stallSeconds": 9}), "stallSeconds is of a program of your own: it must report"),
        (make.job("Custom", run={"recovery": "InPlace"}), "spec.runPolicy.recovery: InPlace has no effect: without"),
        (make.job("Custom", run={"stallPolicy": "Restart"}), "stallPolicy needs spec.trainer, or stallSeconds and a"),
        (
            make.job("OneDevice", worker={"gpus": 0, "template": CLAIMS}),
            "spec.replicaSpecs.worker: its container gets devices by resource claims, and gpus is 0",
        ),
        (
            make.job(trainer=SAVED, run={"elasticPolicy": {"shrinkAfterSeconds": 30}}),
            "spec.runPolicy.elasticPolicy has no effect: set minReplicas or maxReplicas of the workers.",
        ),
        (
            make.job(trainer=SAVED, worker=ELASTIC, run={"elasticPolicy": {"shrinkAfterSeconds": 1800}}),
            "shrinkAfterSeconds (1800 s) has no effect on a start: startDeadlineSeconds (1800 s) is over before.",
        ),
        (
            make.job(
                trainer=SAVED,
                worker=ELASTIC,
                run={"elasticPolicy": {"shrinkAfterSeconds": 30, "growAfterSeconds": 60}},
            ),
            "elasticPolicy.growAfterSeconds has no effect without spec.runPolicy.recovery: InPlace.",
        ),
        (
            make.job(trainer=SAVED, run={"schedulingPolicy": {"queue": "q"}}),
            "spec.runPolicy.schedulingPolicy.queue has no effect without a gang scheduler: an administrator names it",
        ),
        (
            make.job(trainer=SAVED, run={"schedulingPolicy": {"scheduleTimeoutSeconds": 1800}}),
            "scheduleTimeoutSeconds (1800 s) has no effect: startDeadlineSeconds (1800 s) is over before",
        ),
    ],
)
def test_advice(job: dict[str, Any], words: str) -> None:
    assert words in said(job)


@pytest.mark.parametrize("strategy", ["ParameterServer", "Custom"])
def test_a_scope_that_is_kept_needs_no_word(strategy: str) -> None:
    ps = {"ps": 1} if strategy == "ParameterServer" else {}
    assert "restartScope" not in said(make.job(strategy, worker=1, **ps, run={"restartScope": "Replica"}))


def test_a_parameter_server_job_with_a_chief_hears_nothing_of_it() -> None:
    assert "chief" not in said(make.job("ParameterServer", chief=1, worker=1, ps=1))
