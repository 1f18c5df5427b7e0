"""spec: what a user writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from tfgpujob.api.base import Controller, Model, Positive, Text
from tfgpujob.api.devices import DeviceClaim
from tfgpujob.api.run_policy import RestartScope, RunPolicy
from tfgpujob.api.strategies import TRAITS, Restart, Traits
from tfgpujob.api.template import without_empty
from tfgpujob.api.trainer import Trainer
from tfgpujob.api.volumes import MAX_CLAIM_TEMPLATES, ClaimRetention, ClaimTemplate, WhenDeleted
from tfgpujob.names import CONTAINER, ROLES, Role
from tfgpujob_contract.pod import MAX_REPLICAS
from tfgpujob_contract.strategies import Strategy

MAX_GPUS = 64
"""In one pod; more than any machine has."""

_NOT_POD_SHAPING: dict[str, Any] = {
    "managed_by": True,
    "run_policy": True,
    "success_policy": True,
    "replica_specs": {
        str(role): {"restart_policy", "min_replicas", "max_replicas", "persistent_volume_claim_retention_policy"}
        for role in Role
    },
}


class RestartPolicy(StrEnum):
    """replicaSpecs.<role>.restartPolicy."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ALWAYS = "Always"
    EXIT_CODE = "ExitCode"


class SuccessPolicy(StrEnum):
    """spec.successPolicy."""

    DEFAULT = "Default"
    ALL_WORKERS = "AllWorkers"


class ReplicaSpec(Model):
    """The pods of one role."""

    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """Number of pods of this role."""
    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """The minimum of replicas while the job runs. With this or maxReplicas the job is elastic: its number of workers
    can change, with runPolicy.recovery InPlace beside the pods that stay, otherwise by a restart from a checkpoint that
    is written for it; under ParameterServer and trainer.mode predict each worker joins and leaves by itself. Only for
    workers: with spec.trainer under MultiWorkerMirrored and ParameterServer, and Custom with mode predict; without it
    under MultiWorkerMirrored with recovery InPlace."""
    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """The maximum of replicas while the job runs: see minReplicas."""
    gpus: Annotated[int, Field(ge=0, le=MAX_GPUS)] | None = None
    """GPUs of each pod of this role. Absent: spec.gpu.perReplica decides."""
    restart_policy: Annotated[RestartPolicy, Field(strict=False)] = RestartPolicy.EXIT_CODE
    """When a failed replica is started again. ExitCode: after exit codes of 128 and more (a signal, a lost peer, a
    stop on request) and after eviction, not after 1 to 127 (an error in the program). OnFailure and Always: after
    every failure. Never: a failure ends the job. The pod template's own restartPolicy must be left out."""
    template: dict[str, Any] | None = None
    """A PodTemplateSpec for what image, command and GPUs don't cover: volumes, node selectors, tolerations, resources,
    sidecars. The training process is the container named `tensorflow`. Optional."""
    volume_claim_templates: Annotated[list[ClaimTemplate], Field(max_length=MAX_CLAIM_TEMPLATES)] | None = None
    """Volumes of each replica's own: a PersistentVolumeClaim for each index, the same in every attempt, created before
    the pod. A container mounts it by a volumeMount of its name. An existing claim is used as it is."""
    persistent_volume_claim_retention_policy: ClaimRetention | None = None
    """What happens to these claims when the job is deleted. Absent: they are kept."""

    @cached_property
    def pod_template(self) -> Mapping[str, Any]:
        """The template without empty keys: an `env:` without a value means none, as everywhere in Kubernetes. All pods
        share it."""
        found: Mapping[str, Any] = without_empty(self.template or {})
        return found

    @property
    def training_container(self) -> Mapping[str, Any]:
        """The training container of the template; empty if it has none."""
        containers = (self.pod_template.get("spec") or {}).get("containers") or ()
        return next((container for container in containers if container.get("name") == CONTAINER), {})

    @property
    def owns_claims(self) -> bool:
        """True if the claims of volumeClaimTemplates are deleted with the job."""
        policy = self.persistent_volume_claim_retention_policy
        return policy is not None and policy.when_deleted is WhenDeleted.DELETE

    @property
    def elastic(self) -> bool:
        """True if the number of replicas may change while the job runs."""
        return self.min_replicas is not None or self.max_replicas is not None


class ReplicaSpecs(Model):
    """The pods of the job, by role."""

    chief: ReplicaSpec | None = None
    """The coordinator under ParameterServer (added if absent); under MultiWorkerMirrored optional, a worker that
    also saves. At most one."""
    worker: ReplicaSpec | None = None
    """The processes that train. OneDevice and Mirrored have exactly one."""
    ps: ReplicaSpec | None = None
    """Parameter servers, which hold the variables. Only under ParameterServer and Custom."""
    evaluator: ReplicaSpec | None = None
    """Evaluates checkpoints beside the training. At most one; never required for the job to run."""

    def items(self) -> Iterator[tuple[Role, ReplicaSpec]]:
        """The roles that are present, in the order chief, worker, ps, evaluator."""
        for role in ROLES:
            replica: ReplicaSpec | None = getattr(self, role)
            if replica is not None:
                yield role, replica

    def count(self, role: Role) -> int:
        """Pods of a role; 0 if absent."""
        replica: ReplicaSpec | None = getattr(self, role)
        return 0 if replica is None else replica.replicas

    @property
    def least_workers(self) -> int:
        """The minimum of an elastic job's workers: minReplicas, or one."""
        return (self.worker.min_replicas if self.worker is not None else None) or 1


class GpuMemory(Model):
    """spec.gpu.memory."""

    growth: bool | None = None
    """Allocate memory as it is needed instead of all at start. Absent: true, unless limitMiB is set. An image of your
    own that runs TensorFlow obeys true, by TF_FORCE_GPU_ALLOW_GROWTH; absent and false leave it to the program."""
    limit_mib: Annotated[Positive | None, Field(alias="limitMiB")] = None
    """Allocate at most this many MiB of each GPU, for GPUs that are shared. Not together with growth. An image of your
    own finds the number in TFGPU_GPU_MEMORY_LIMIT_MIB, and must obey it itself."""


class GpuSpec(Model):
    """spec.gpu."""

    per_replica: Annotated[int, Field(ge=0, le=MAX_GPUS)] | None = None
    """GPUs of each chief, worker and evaluator pod. Absent: 1, under Custom without spec.trainer 0. A ps and a
    ParameterServer chief get none, unless their own `gpus` says so."""
    resource_name: Annotated[
        str,
        Field(
            max_length=316,
            pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        ),
    ] = "nvidia.com/gpu"
    """The extended resource to request: nvidia.com/gpu, a MIG profile such as nvidia.com/mig-1g.10gb, amd.com/gpu, …
    GPU time counts these, a slice as one."""
    processes_per_gpu: Annotated[int, Field(ge=1, le=64)] | None = None
    """Processes of the bundled trainer on each GPU of a worker, each a worker task with one GPU. Not together with a
    chief, and above 1 not with memory.growth: false. Absent: one process in a pod sees all its GPUs."""
    memory: GpuMemory = Field(default_factory=GpuMemory)
    """How much GPU memory TensorFlow allocates. By default as it needs it."""
    claim: DeviceClaim | None = None
    """GPUs by a resource claim of each pod (dynamic resource allocation, from Kubernetes 1.34 on) instead of
    resourceName, for the pods that would have GPUs without it. Its count is the number of GPUs: not together with
    perReplica, nor with a role's gpus, except an evaluator with gpus: 0, which gets no claim."""


class JobSpec(Model):
    """What to train, with how many pods and GPUs, and what to do when something fails."""

    strategy: Annotated[Strategy, Field(strict=False)]
    """How TensorFlow distributes the training. OneDevice: one process, one GPU. Mirrored: one process, all GPUs of its
    pod. MultiWorkerMirrored: several workers in step. ParameterServer: workers that don't wait for each other,
    variables on parameter servers. Custom: a TF_CONFIG as TFJob gives it, for programs that distribute the training
    themselves."""
    replica_specs: ReplicaSpecs
    """The pods, by role."""
    gpu: GpuSpec = Field(default_factory=GpuSpec)
    """The GPUs of the pods: how many, which kind, and how TensorFlow uses them."""
    trainer: Trainer | None = None
    """What the bundled trainer runs: a module that defines model() and data(split) in plain Keras and imports nothing
    of this project. Leave spec.trainer out to run your own image with its own command."""
    image: Text | None = None
    """Image for all roles. Absent: with spec.trainer the bundled trainer's image. A template's image takes
    precedence."""
    success_policy: Annotated[SuccessPolicy, Field(strict=False)] = SuccessPolicy.DEFAULT
    """When the job has succeeded. Default: when the chief has, or without a chief, worker 0; under trainer.mode
    predict, all workers. AllWorkers: when all workers have. An elastic job that predicts succeeds with its first
    worker, which ends once all rows are written."""
    run_policy: RunPolicy = Field(default_factory=RunPolicy)
    """How the job starts, restarts, ends and is cleaned up."""
    managed_by: Controller | None = None
    """Controller responsible for this job. Absent or tfgpu.dev/operator: this one. kueue.x-k8s.io/multikueue, with the
    label kueue.x-k8s.io/queue-name: MultiKueue runs it in another cluster, and this operator writes its Workload here.
    Any other: this operator ignores the job. Immutable."""

    @property
    def predicts(self) -> bool:
        """True if the workers predict: each computes rows by itself, without collectives."""
        return self.trainer is not None and self.trainer.mode == "predict"

    @property
    def traits(self) -> Traits:
        """The traits of the strategy."""
        return TRAITS[self.strategy]

    @property
    def restarts_alone(self) -> bool:
        """True if a failed replica restarts alone, or with a few others, and not with the whole gang."""
        scope, restart = self.run_policy.restart_scope, self.traits.restart
        if scope is RestartScope.GANG:
            return False
        by_scope = restart is Restart.BY_RESTART_SCOPE and scope is RestartScope.REPLICA
        return self.predicts or restart is Restart.REPLICA or by_scope

    def runs_on_without(self, roles: Iterable[Role]) -> bool:
        """Whether the rest of the job makes progress while replicas of these roles restart."""
        return self.predicts or all(role in self.traits.runs_on_without for role in roles)

    def most_pods(self, role: Role, replica: ReplicaSpec) -> int:
        """How many pods a role may have at once."""
        spares = (self.run_policy.spares or 0) if role is Role.WORKER else 0
        return max(replica.replicas, replica.max_replicas or 0) + spares

    @property
    def elastic(self) -> bool:
        """True if the number of workers may change while the job runs."""
        worker = self.replica_specs.worker
        return worker is not None and worker.elastic

    @property
    def shrinks_after(self) -> int | None:
        """Seconds after which an elastic job runs with the workers that have a node; None: it waits for all."""
        policy = self.run_policy.elastic_policy
        return policy.shrink_after_seconds if policy is not None and self.elastic else None

    @property
    def workers_come_and_go(self) -> bool:
        """True if each worker joins and leaves by itself while the others continue."""
        return self.elastic and (self.predicts or self.traits.workers_come_and_go)

    @property
    def shares_parts(self) -> bool:
        """True if the workers predict and each takes the next part of the rows that no other worker has."""
        return self.predicts and self.workers_come_and_go

    @cached_property
    def shape_hash(self) -> str:
        """A digest of what shapes the pods.

        Values that equal their defaults are left out, so that a release which adds a field with a default, and an API
        server that fills it in, change no hash.
        """
        shape = self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=_NOT_POD_SHAPING)
        if self.elastic:
            shape["replicaSpecs"]["worker"].pop("replicas", None)
        if self.workers_come_and_go:
            # A chief that was started without this admits no workers.
            shape["workersComeAndGo"] = True
        text = json.dumps(shape, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
