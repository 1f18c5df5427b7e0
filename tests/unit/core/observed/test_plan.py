"""What an attempt is started from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob.api import JobStatus
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import Config
from tfgpujob.names import Role


def test_it_survives_the_way_through_the_status() -> None:
    plan = make.plan(make.job("ParameterServer", worker=3, ps=2, evaluator=1))
    assert Plan.from_status(json.loads(json.dumps(plan.to_status()))) == plan
    JobStatus.model_validate({"plan": plan.to_status()})


def test_roles_come_in_one_order_and_only_if_they_have_pods() -> None:
    plan = make.plan(make.job("ParameterServer", evaluator=1, ps=1, worker=2, chief=1))
    assert list(plan.counts) == [Role.CHIEF, Role.WORKER, Role.PS, Role.EVALUATOR]
    assert Role.EVALUATOR not in make.plan(make.job(worker=2, evaluator=0)).counts


def test_a_chief_is_added_to_a_parameter_server_job() -> None:
    assert make.plan(make.job("ParameterServer", worker=1, ps=1)).counts[Role.CHIEF] == 1


@pytest.mark.parametrize(
    ("parts", "image"),
    [
        ({}, "trainer:1"),
        ({"image": "mine:1"}, "mine:1"),
        ({"worker": {"template": {"spec": {"containers": [{"name": "tensorflow", "image": "its:1"}]}}}}, "its:1"),
        ({"worker": {"template": {"spec": {"containers": [{"name": "other", "image": "other:1"}]}}}}, "trainer:1"),
        ({"worker": {"template": {"spec": {"containers": [{"name": "tensorflow"}]}}}, "image": "mine:1"}, "mine:1"),
        ({"worker": {"template": {}}}, "trainer:1"),
    ],
)
def test_which_image(parts: dict[str, Any], image: str) -> None:
    assert make.plan(make.job("OneDevice", **{"worker": 1, **parts})).images[Role.WORKER] == image


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": "Mirrored"},
        {"image": "other:1"},
        {"gpu": {"perReplica": 2}},
        {"trainer": {**make.TRAINER, "epochs": 2}},
        {"replicaSpecs": {"worker": {"replicas": 1}, "evaluator": {}}},
        {"replicaSpecs": {"worker": {"replicas": 1, "template": {"spec": {"nodeSelector": {"a": "b"}}}}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_shapes_the_pods_changes_the_hash(change: dict[str, Any]) -> None:
    job = make.job("OneDevice")
    assert make.parsed({**job, "spec": job["spec"] | change}).shape_hash != make.parsed(job).shape_hash


@pytest.mark.parametrize(
    "change",
    [
        {"runPolicy": {"backoffLimit": 1, "suspend": True}},
        {"successPolicy": "AllWorkers"},
        {"replicaSpecs": {"worker": {"replicas": 1, "restartPolicy": "Never"}}},
        {"replicaSpecs": {"worker": {}}},
        {"gpu": {"resourceName": "nvidia.com/gpu"}},
        {"trainer": {**make.TRAINER, "seed": 0}},
    ],
    ids=str,
)
def test_what_does_not_shape_them_or_only_names_a_default_changes_nothing(change: dict[str, Any]) -> None:
    job = make.job("OneDevice")
    assert make.parsed({**job, "spec": job["spec"] | change}).shape_hash == make.parsed(job).shape_hash


def test_workers_that_come_and_go_are_no_others_of_a_rigid_job() -> None:
    """Its chief was started without a word of them."""
    rigid, elastic = (
        make.job("ParameterServer", worker={"replicas": 1, **bounds}, ps=1, trainer=dict(make.TRAINER), image=None)
        for bounds in ({}, {"maxReplicas": 4})
    )
    assert make.parsed(rigid).shape_hash != make.parsed(elastic).shape_hash


def test_other_defaults_of_another_operator_change_no_hash() -> None:
    other = Config(operator_image="operator:2", trainer_image="trainer:2", operator_version="2.0.0")
    assert make.plan(make.job(), other).spec_hash == make.plan(make.job()).spec_hash
