"""parse_job and the models, where the case table doesn't reach."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tfgpujob.api import (
    CleanPodPolicy,
    Invalid,
    JobSpec,
    RestartPolicy,
    RestartScope,
    StartPolicy,
    SuccessPolicy,
    gpus,
    parse_job,
    processes,
)
from tfgpujob.names import Role
from tfgpujob_contract.strategies import Strategy


def job(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "digits"}, "spec": spec}


def parse(**spec: Any) -> JobSpec:
    parsed = parse_job(job(**spec))
    assert isinstance(parsed, JobSpec), parsed
    return parsed


def test_an_invalid_reads_as_a_sentence() -> None:
    assert str(Invalid("spec.a", "-1 is negative", "set 1 or more")) == "spec.a: -1 is negative; set 1 or more"


@pytest.mark.parametrize("spec", [None, 3, "text", []])
def test_a_spec_that_is_none(spec: Any) -> None:
    parsed = parse_job({"metadata": {"name": "digits"}, "spec": spec})
    assert isinstance(parsed, tuple)
    assert [invalid.field for invalid in parsed] == ["spec"]


@pytest.mark.parametrize("metadata", [None, {}, "digits", {"name": 3}, {"name": ""}])
def test_a_name_that_is_none(metadata: Any) -> None:
    parsed = parse_job({**job(strategy="OneDevice", image="a", replicaSpecs={"worker": {}}), "metadata": metadata})
    assert isinstance(parsed, tuple)
    assert [invalid.field for invalid in parsed] == ["metadata.name"]


def test_defaults() -> None:
    spec = parse(strategy="OneDevice", image="a", replicaSpecs={"worker": {}})
    policy = spec.run_policy
    assert spec.strategy is Strategy.ONE_DEVICE
    assert spec.success_policy is SuccessPolicy.DEFAULT
    assert (policy.clean_pod_policy, policy.start_policy) == (CleanPodPolicy.AUTO, StartPolicy.RETRY)
    assert (policy.backoff_limit, policy.start_deadline_seconds, policy.force_delete_after_seconds) == (6, 1800, 60)
    assert (policy.restart_scope, policy.suspend) == (RestartScope.AUTO, False)
    worker = spec.replica_specs.worker
    assert worker is not None
    assert (worker.replicas, worker.restart_policy, worker.gpus) == (1, RestartPolicy.EXIT_CODE, None)
    assert spec.gpu.resource_name == "nvidia.com/gpu"


def test_a_gang_scheduler_that_makes_pod_groups_itself_is_told_how_to_be_had() -> None:
    policy = {"schedulingPolicy": {"gang": "KAI"}}
    parsed = parse_job(job(strategy="OneDevice", image="a", replicaSpecs={"worker": {}}, runPolicy=policy))
    assert isinstance(parsed, tuple)
    (found,) = parsed
    assert found.field == "spec.runPolicy.schedulingPolicy.gang"
    assert "'KAI' is not one of Auto, None, Volcano" in found.problem
    assert "schedulerName: kai-scheduler" in found.fix


def test_roles_come_in_one_order() -> None:
    roles: dict[str, Any] = {"evaluator": {}, "ps": {}, "worker": {}, "chief": {}}
    spec = parse(strategy="ParameterServer", image="a", replicaSpecs=roles)
    assert [role for role, _ in spec.replica_specs.items()] == [Role.CHIEF, Role.WORKER, Role.PS, Role.EVALUATOR]


def test_a_template_is_kept_as_given() -> None:
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"nodeName": "", "tolerations": [{"key": None, "operator": "Exists"}]},
    }
    spec = parse(strategy="OneDevice", image="a", replicaSpecs={"worker": {"template": template}})
    worker = spec.replica_specs.worker
    assert worker is not None
    assert worker.template == template


def test_models_are_frozen() -> None:
    spec = parse(strategy="OneDevice", image="a", replicaSpecs={"worker": {}})
    with pytest.raises(ValidationError, match="frozen"):
        spec.image = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("MultiWorkerMirrored", {"chief": 1, "worker": 1, "evaluator": 1}),
        ("ParameterServer", {"chief": 0, "worker": 1, "ps": 0, "evaluator": 1}),
        ("Custom", {"chief": 0, "worker": 0, "ps": 0, "evaluator": 0}),
    ],
)
def test_gpus_of_a_role(strategy: str, expected: dict[str, int]) -> None:
    def by_role(**gpu: int) -> dict[str, int]:
        spec = parse(strategy=strategy, image="a", gpu=gpu, replicaSpecs={role: {} for role in expected})
        return {str(role): gpus(spec, role, replica) for role, replica in spec.replica_specs.items()}

    assert by_role() == expected
    serves = {"ps", "chief"} if strategy == "ParameterServer" else {"ps"}
    assert by_role(perReplica=4) == {role: 0 if role in serves else 4 for role in expected}


def test_a_roles_own_gpus_win() -> None:
    spec = parse(strategy="ParameterServer", image="a", replicaSpecs={"worker": {}, "ps": {"gpus": 2}})
    assert spec.replica_specs.ps is not None
    assert gpus(spec, Role.PS, spec.replica_specs.ps) == 2


def test_one_process_sees_all_gpus_unless_told_otherwise() -> None:
    spec = parse(strategy="OneDevice", image="a", replicaSpecs={"worker": {"gpus": 4}})
    assert spec.replica_specs.worker is not None
    assert processes(spec, Role.WORKER, spec.replica_specs.worker) == 1


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("tfReplicaSpecs", "it is called replicaSpecs here, with roles in lower case"),
        ("startegy", "did you mean strategy?"),
        ("globalBatchSize", "move it to spec.trainer.globalBatchSize"),
        ("restartPolicy", "move it to spec.replicaSpecs.<role>.restartPolicy"),
        ("suspend", "move it to spec.runPolicy.suspend"),
        ("nodeSelector", "move it to spec.replicaSpecs.<role>.template.spec.nodeSelector"),
        ("memory", "move it to spec.replicaSpecs.<role>.template.spec.containers[tensorflow].resources.limits.memory"),
        ("enableDynamicWorker", "remove it: under ParameterServer, workers may come and go anyway"),
        ("zzz", "remove it; spec has strategy, replicaSpecs, gpu, trainer, image, successPolicy, runPolicy, managedBy"),
    ],
)
def test_an_unknown_key_gets_a_hint(key: str, fix: str) -> None:
    parsed = parse_job(job(strategy="OneDevice", image="a", replicaSpecs={"worker": {}}, **{key: 1}))
    assert isinstance(parsed, tuple)
    assert [(invalid.field, invalid.fix) for invalid in parsed] == [(f"spec.{key}", fix)]
