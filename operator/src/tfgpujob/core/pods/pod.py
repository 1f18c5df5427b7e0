"""A replica's pod: the user's template, completed.

The template takes precedence, except for what the operator's guarantees depend on (names, labels, restartPolicy,
hostname); the API rules refuse a template that sets those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tfgpujob import names
from tfgpujob.api import JobSpec, ReplicaSpec, VoluntaryDisruption, gpus
from tfgpujob.core.observed import metadata
from tfgpujob.core.observed.plan import Plan, replica_specs
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.pods import in_place, trainer_pod
from tfgpujob.core.pods.claim import add_claims
from tfgpujob.core.pods.device_claim import add_device_claim, claims_devices
from tfgpujob.core.pods.placement import place
from tfgpujob.core.pods.pod_group import join_pod_group
from tfgpujob.core.pods.tf_config import Address, peers_to_wait_for, tf_config
from tfgpujob.core.pods.topology import add_topology
from tfgpujob.names import Role
from tfgpujob_contract.limits import SHM_DIR
from tfgpujob_contract.variables import Variable

_COPIED_LEVELS: Final = {"containers": 3, "initContainers": 2, "affinity": 2}
"""Levels to copy of a field of a pod's spec: as deep as anything is added. Other fields: the first level."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod of the job: everything that differs between the pods of one attempt."""

    role: Role
    index: int
    attempt: int
    restart: int = 0
    progress_token: str = field(default="", repr=False)
    """Token that the trainer requires for GET /progress; empty: none."""
    recovery_token: str = field(default="", repr=False)
    restarts_left: int = 0
    """Restarts left by runPolicy.backoffLimit."""
    joins: bool = False
    """It joins a gang that is training, in a resize or as the replacement of a lost pod."""
    reached_step: int = 0
    """The highest step that the job is known to have completed."""
    save_seconds: int = 0
    """Duration of its last save; 0 if unknown."""


def build_pod(job: Object, spec: JobSpec, plan: Plan, replica: Replica) -> Object:
    """The pod to create. `job` has name, namespace and uid; `spec` is its parsed spec."""
    job_name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    replica_spec = replica_specs(spec)[replica.role]
    template = replica_spec.pod_template
    template_metadata: Mapping[str, Any] = template.get("metadata") or {}
    own_spec = template.get("spec") or {}
    pod_spec: dict[str, Any] = {key: _copied(part, _COPIED_LEVELS.get(key, 1)) for key, part in own_spec.items()}
    address = Address(job_name, namespace)

    _identity(pod_spec, job_name, replica)
    add_claims(pod_spec, replica_spec, pod_spec["hostname"])
    container = _main_container(pod_spec)
    container["image"] = plan.images[replica.role]
    container["env"] = [*_environment(job, spec, plan, replica, replica_spec), *container.get("env", [])]
    for any_container in (*pod_spec["containers"], *pod_spec.get("initContainers", ())):
        any_container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if spec.run_policy.scheduling_policy is not None and spec.run_policy.scheduling_policy.priority_class:
        pod_spec.setdefault("priorityClassName", spec.run_policy.scheduling_policy.priority_class)
    _ports(container, plan.ports[replica.role])
    if spec.gpu.claim is not None and claims_devices(spec, replica.role, replica_spec):
        add_device_claim(job, spec.gpu.claim, pod_spec, container)
    else:
        _gpu_request(container, spec.gpu.resource_name, gpus(spec, replica.role, replica_spec))
    _shared_memory(pod_spec, container)
    annotations = dict(template_metadata.get("annotations") or {})
    if spec.run_policy.voluntary_disruption is VoluntaryDisruption.AVOID:
        annotations = {**names.AVOID_VOLUNTARY_DISRUPTION, **annotations}
    if in_place.supervises(spec, replica.role):
        container["command"] = in_place.supervised(container["command"])
    if spec.trainer is not None:
        annotations[names.ANNOTATION_TRAINER_CONFIG] = trainer_pod.add_trainer(
            pod_spec,
            container,
            spec.trainer,
            save_seconds=replica.save_seconds,
            image_volumes=plan.image_volumes,
        )
    elif peers := _peers(spec, plan, address, replica):
        gate = _gate(plan.gate_image, peers, spec.run_policy.start_deadline_seconds)
        pod_spec["initContainers"] = [gate, *pod_spec.get("initContainers", [])]

    labels = dict(template_metadata.get("labels") or {})
    join_pod_group(job_name, plan, labels, annotations, pod_spec)
    place(plan.placement.get(replica.role, {}), labels, annotations, pod_spec)
    labels |= metadata.pod_labels(job_name, replica.role, replica.index, replica.attempt, replica.restart)
    add_topology(pod_spec, spec.run_policy.scheduling_policy, labels)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": metadata.pod_name(job_name, replica.role, replica.index),
            "namespace": namespace,
            "labels": labels,
            **({"annotations": annotations} if annotations else {}),
            "ownerReferences": [metadata.owner_reference(job)],
        },
        "spec": pod_spec,
    }


def _peers(spec: JobSpec, plan: Plan, address: Address, replica: Replica) -> tuple[str, ...]:
    """The hosts that the program of this pod needs at its start."""
    if not replica.joins:
        return peers_to_wait_for(spec.strategy, plan, address, replica.role)
    # Each of the others may be lost as well, or a spare that is used already.
    leads = (replica.role, replica.index) == plan.members.chief
    return () if leads else (address.host(*plan.members.chief),)


def _copied(value: Any, levels: int) -> Any:
    """A copy down to this level; what is below is the template's own, which is not changed here."""
    if not levels or not isinstance(value, Mapping | list):
        return value
    if isinstance(value, list):
        return [_copied(item, levels - 1) for item in value] if levels > 1 else [*value]
    return {key: _copied(item, levels - 1) for key, item in value.items()} if levels > 1 else {**value}


def _identity(pod_spec: dict[str, Any], job_name: str, replica: Replica) -> None:
    pod_spec["hostname"] = metadata.pod_name(job_name, replica.role, replica.index)
    pod_spec["subdomain"] = job_name
    # The operator decides what a failure means; a kubelet that restarts containers in place would hide it.
    pod_spec["restartPolicy"] = "Never"
    pod_spec.setdefault("enableServiceLinks", False)
    pod_spec.setdefault("automountServiceAccountToken", False)


def _main_container(pod_spec: dict[str, Any]) -> dict[str, Any]:
    """The `tensorflow` container in the pod's own list, made if the template has none."""
    containers: list[dict[str, Any]] = pod_spec.setdefault("containers", [])
    for container in containers:
        if container.get("name") == names.CONTAINER:
            return container
    containers.insert(0, {"name": names.CONTAINER})
    return containers[0]


def _environment(
    job: Object, spec: JobSpec, plan: Plan, replica: Replica, replica_spec: ReplicaSpec
) -> list[dict[str, str]]:
    """Ours come first, so that the template's own variables can refer to them as $(NAME)."""
    job_metadata = job["metadata"]
    address = Address(job_metadata["name"], job_metadata["namespace"])
    limit = spec.gpu.memory.limit_mib
    cluster = replace(plan, members=plan.members.whole()) if replica.joins else plan
    growth = limit is None if spec.gpu.memory.growth is None else spec.gpu.memory.growth
    config = None if spec.predicts else tf_config(spec.strategy, cluster, address, replica.role, replica.index)
    start = str(spec.run_policy.start_deadline_seconds)
    values = {
        "TF_CONFIG": config,
        Variable.STRATEGY: str(spec.strategy),
        Variable.JOB: job_metadata["name"],
        Variable.NAMESPACE: job_metadata["namespace"],
        Variable.JOB_UID: job_metadata["uid"],
        Variable.REPLICA_TYPE: str(replica.role),
        Variable.REPLICA_INDEX: str(replica.index),
        Variable.REPLICAS: str(plan.counts[replica.role]) if spec.predicts else None,
        Variable.SHARED_PARTS: "1" if plan.members.shares_parts else None,
        Variable.ATTEMPT: str(replica.attempt),
        Variable.REPLICA_RESTART: str(replica.restart),
        Variable.GPUS: str(gpus(spec, replica.role, replica_spec)),
        Variable.PROCESSES_PER_GPU: str(spec.gpu.processes_per_gpu) if len(plan.ports[replica.role]) > 1 else None,
        Variable.GPU_MEMORY_GROWTH: "true" if growth else "false",
        Variable.GPU_MEMORY_LIMIT_MIB: None if limit is None else str(limit),
        Variable.START_DEADLINE_SECONDS: start if spec.trainer is not None and config is not None else None,
        Variable.PROGRESS_TOKEN: replica.progress_token or None,
        Variable.REACHED_STEP: str(replica.reached_step) if spec.trainer is not None and replica.reached_step else None,
        **({} if spec.trainer is not None or not spec.gpu.memory.growth else names.OWN_PROGRAMS_GROWTH),
    }
    if spec.workers_come_and_go and replica.role is Role.CHIEF:
        values[Variable.WORKERS_MIN] = str(spec.replica_specs.least_workers)
    if in_place.recovers_in_place(spec, replica.role, replica_spec):
        values |= in_place.environment(
            spec,
            plan,
            address,
            replica.role,
            budget=in_place.share_of_budget(spec, plan, replica.index, replica.restarts_left),
            token=replica.recovery_token,
            joins=replica.joins,
        )
    return [{"name": str(name), "value": value} for name, value in values.items() if value is not None]


def _ports(container: dict[str, Any], tasks: tuple[int, ...]) -> None:
    ports: list[dict[str, Any]] = container.setdefault("ports", [])
    for number in tasks:
        if all(port.get("containerPort") != number for port in ports):
            ports.append({"name": names.port_name(number), "containerPort": number})


def _gpu_request(container: dict[str, Any], resource: str, count: int) -> None:
    resources: dict[str, Any] = container.setdefault("resources", {})
    # Devices by resource claims (DRA) would be requested twice. A user who wants both sets the limit in the template.
    if count and not resources.get("claims") and resource not in (resources.get("limits") or {}):
        resources["limits"] = {**(resources.get("limits") or {}), resource: str(count)}


def _shared_memory(pod_spec: dict[str, Any], container: dict[str, Any]) -> None:
    """NCCL and tf.data pass buffers through /dev/shm, and the runtime's default of 64 MiB is too small."""
    volume = {"name": names.SHM_VOLUME, "emptyDir": {"medium": "Memory"}}
    trainer_pod.mount(pod_spec, container, volume, SHM_DIR)


def _gate(image: str, peers: tuple[str, ...], timeout_seconds: int) -> dict[str, Any]:
    return {
        "name": names.GATE_CONTAINER,
        "image": image,
        "command": ["python", "-m", "tfgpujob.gate"],
        "env": [
            {"name": "TFGPU_GATE_PEERS", "value": ",".join(peers)},
            {"name": "TFGPU_GATE_TIMEOUT_SECONDS", "value": str(timeout_seconds)},
        ],
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"cpu": "500m", "memory": "128Mi"},
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": names.NON_ROOT_USER,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
