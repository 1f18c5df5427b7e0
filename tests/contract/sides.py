"""Both sides of the contract: the operator's output, and the trainer's reading of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.contract import trainer_side

from tfgpujob import names
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.core.observed.plan import resolve
from tfgpujob.core.observed.snapshot import Config
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.names import Role

Object = Mapping[str, Any]

REPOSITORY = Path(__file__).resolve().parents[2]
REPLICAS: Mapping[str, dict[str, Any]] = {
    "OneDevice": {"worker": {}},
    "Mirrored": {"worker": {"gpus": 2}},
    "MultiWorkerMirrored": {"worker": {"replicas": 2}},
    "ParameterServer": {"worker": {"replicas": 2}, "ps": {}},
}
"""The replicaSpecs of a small job under each strategy."""
CONFIG = Config(operator_image="example.com/operator:1", trainer_image="example.com/trainer:1", operator_version="1")


def job(trainer: Object, **spec: Any) -> dict[str, Any]:
    """A TFGPUJob of two workers, as the API server would give it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "job", "namespace": "team", "uid": "0d1c-uid", "generation": 1, "resourceVersion": "1"},
        "spec": {
            "strategy": "MultiWorkerMirrored",
            "replicaSpecs": {"worker": {"replicas": 2}},
            "trainer": dict(trainer),
            **spec,
        },
    }


def parsed(job_object: Object) -> JobSpec:
    spec = parse_job(job_object)
    assert isinstance(spec, JobSpec), [str(problem) for problem in spec]
    return spec


def pod_of(job_object: Object, role: Role = Role.WORKER, index: int = 0, attempt: int = 1, restart: int = 0) -> Object:
    """The pod that the operator creates for this replica."""
    spec = parsed(job_object)
    plan = resolve(spec, CONFIG)
    joins = (role, index) in plan.members.joining
    replica = Replica(role, index, attempt, restart, recovery_token="token", restarts_left=6, joins=joins)
    return build_pod(job_object, spec, plan, replica)


def config_file(pod: Object) -> str:
    """The config file as the kubelet writes it for the pod: an annotation, by the downward API."""
    text: str = pod["metadata"]["annotations"][names.ANNOTATION_TRAINER_CONFIG]
    return text


def environment(pod: Object) -> dict[str, str]:
    """The environment of the `tensorflow` container."""
    container = next(c for c in pod["spec"]["containers"] if c["name"] == names.CONTAINER)
    return {variable["name"]: variable["value"] for variable in container["env"]}


def read_by_trainer(pod: Object) -> dict[str, Any]:
    """What the trainer makes of the pod: `config` and `env`, or `error` and `code`."""
    return trainer_side.pod(config_file(pod), environment(pod))
