"""spec: what a user writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from tfgpujob.api.base import Model, NotNegative, Positive, Positive64, Quantity, Text
from tfgpujob.api.devices import DeviceClaim
from tfgpujob.api.strategies import TRAITS, Restart, Traits
from tfgpujob.api.trainer import Mode, TrainerSpec
from tfgpujob.api.volumes import MAX_CLAIM_TEMPLATES, ClaimRetention, ClaimTemplate, WhenDeleted
from tfgpujob.names import ROLES, Role, Strategy

MAX_REPLICAS = 512
"""Of all roles together: TF_CONFIG is one environment variable, and Linux caps those at 128 KiB."""
MAX_GPUS = 64
"""In one pod, more than any machine has."""

_NOT_POD_SHAPING: dict[str, Any] = {
    "managed_by": True,
    "run_policy": True,
    "success_policy": True,
    "replica_specs": {
        str(role): {"restart_policy", "min_replicas", "max_replicas", "persistent_volume_claim_retention_policy"}
        for role in Role
    },
}


Controller = Annotated[
    str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]
"""Name of a controller, as of a Job's managedBy: domain/name."""


class RestartPolicy(StrEnum):
    """replicaSpecs.<role>.restartPolicy."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ALWAYS = "Always"
    EXIT_CODE = "ExitCode"


class CleanPodPolicy(StrEnum):
    """runPolicy.cleanPodPolicy."""

    AUTO = "Auto"
    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


class StartPolicy(StrEnum):
    """runPolicy.startPolicy."""

    RETRY = "Retry"
    FAIL = "Fail"


class RestartScope(StrEnum):
    """runPolicy.restartScope."""

    AUTO = "Auto"
    REPLICA = "Replica"
    GANG = "Gang"


class StallPolicy(StrEnum):
    """runPolicy.stallPolicy."""

    REPORT = "Report"
    RESTART = "Restart"


class Recovery(StrEnum):
    """runPolicy.recovery."""

    PODS = "Pods"
    IN_PLACE = "InPlace"


class VoluntaryDisruption(StrEnum):
    """runPolicy.voluntaryDisruption."""

    AVOID = "Avoid"
    ALLOW = "Allow"


class Gang(StrEnum):
    """runPolicy.schedulingPolicy.gang."""

    AUTO = "Auto"
    NONE = "None"
    VOLCANO = "Volcano"
    SCHEDULER_PLUGINS = "SchedulerPlugins"
    NATIVE = "Native"


class TopologyMode(StrEnum):
    """runPolicy.schedulingPolicy.topologyMode."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"


class SuccessPolicy(StrEnum):
    """spec.successPolicy."""

    DEFAULT = "Default"
    ALL_WORKERS = "AllWorkers"


class ReplicaSpec(Model):
    """The pods of one role."""

    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """Number of pods of this role."""
    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """The fewest that replicas may be set to while the job runs. With this or maxReplicas the job is elastic: it goes
    on with another number of workers, with runPolicy.recovery InPlace beside the pods that stay, else from a checkpoint
    that it writes for that; under ParameterServer and trainer.mode predict they come and go one by one. Only of
    workers: with spec.trainer under MultiWorkerMirrored and ParameterServer, and Custom with mode predict; without it
    under MultiWorkerMirrored with recovery InPlace."""
    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """The most that replicas may be set to while the job runs: see minReplicas."""
    gpus: Annotated[int, Field(ge=0, le=MAX_GPUS)] | None = None
    """GPUs of each pod of this role. Absent: spec.gpu.perReplica decides."""
    restart_policy: Annotated[RestartPolicy, Field(strict=False)] = RestartPolicy.EXIT_CODE
    """When a failed replica is started again. ExitCode: after exit codes of 128 and more (a signal, a lost peer, a
    stop on request) and after eviction, not after 1 to 127 (an error in the program). OnFailure and Always: after
    every failure. Never: a failure ends the job. The pod template's own restartPolicy must be left out."""
    template: dict[str, Any] | None = None
    """A PodTemplateSpec for what image, command and GPUs don't say: volumes, node selectors, tolerations, resources,
    sidecars. The training process is the container named `tensorflow`. May be left out altogether."""
    volume_claim_templates: Annotated[list[ClaimTemplate], Field(max_length=MAX_CLAIM_TEMPLATES)] | None = None
    """Volumes of which each replica has one of its own: a PersistentVolumeClaim for each index, the same in every
    attempt, created before the pod. A container mounts it by a volumeMount of its name. A claim that is there already
    is used as it is."""
    persistent_volume_claim_retention_policy: ClaimRetention | None = None
    """What becomes of these claims when the job is deleted. Absent: they stay."""

    @property
    def owns_claims(self) -> bool:
        """Whether the claims of volumeClaimTemplates go with the job."""
        policy = self.persistent_volume_claim_retention_policy
        return policy is not None and policy.when_deleted is WhenDeleted.DELETE

    @property
    def elastic(self) -> bool:
        """Whether their number may change while the job runs."""
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
        """The fewest that an elastic job trains with: minReplicas, or one."""
        return (self.worker.min_replicas if self.worker is not None else None) or 1


class GpuMemory(Model):
    """spec.gpu.memory."""

    growth: bool | None = None
    """Take memory as it is needed instead of all at start. Absent: true, unless limitMiB is set. An image of your own
    that runs TensorFlow obeys true, by TF_FORCE_GPU_ALLOW_GROWTH; absent and false leave it to the program."""
    limit_mib: Annotated[Positive | None, Field(alias="limitMiB")] = None
    """Take at most this many MiB of each GPU, for GPUs that are shared. Not together with growth. An image of your own
    finds the number in TFGPU_GPU_MEMORY_LIMIT_MIB, and must obey it itself."""


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
    """How much GPU memory TensorFlow takes. By default as it needs it."""
    claim: DeviceClaim | None = None
    """GPUs by a resource claim of each pod (dynamic resource allocation, from Kubernetes 1.34 on) in place of
    resourceName, for the pods that would have GPUs without it. Its count says how many: not together with perReplica,
    nor a role's gpus, but for an evaluator with gpus: 0, which gets no claim."""


class SchedulingPolicy(Model):
    """spec.runPolicy.schedulingPolicy."""

    gang: Annotated[Gang, Field(strict=False)] = Gang.AUTO
    """The scheduler that places all pods of an attempt or none, by a pod group that the operator makes for it. Volcano;
    SchedulerPlugins: the coscheduling plugin of kube-scheduler; Native: kube-scheduler's own, from Kubernetes 1.36 on.
    Auto: the one that this cluster's operator uses, if any, unless a template names another scheduler or a pod group
    of its own. None: none. This field and the next three count from the next attempt."""
    min_available: Positive | None = None
    """Pods that must find a place together. Absent: all but the evaluator. No more than the job has."""
    queue: Text | None = None
    """The queue of Volcano in which the job waits."""
    min_resources: Annotated[dict[str, Quantity], Field(max_length=64)] | None = None
    """What must be free before Volcano or SchedulerPlugins places a pod. Absent: they look at the pods alone."""
    priority_class: Text | None = None
    """PriorityClass of the pods, from the next one that is created; a template's own priorityClassName wins. The pod
    group has it too."""
    schedule_timeout_seconds: Positive | None = None
    """Seconds in which all required pods must have a node. After that all are released, and startPolicy decides, as
    after startDeadlineSeconds, which also counts pulling images and starting. Absent: only startDeadlineSeconds."""
    topology_key: (
        Annotated[
            str,
            Field(
                max_length=316,
                pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
            ),
        ]
        | None
    ) = None
    """Label of the nodes, as topology.kubernetes.io/zone or that of a rack, in one value of which all pods of an
    attempt but the evaluator are placed, by pod affinity on it. The template's own affinity holds besides. Counts from
    the next pod that is created."""
    topology_mode: Annotated[TopologyMode, Field(strict=False)] | None = None
    """Whether they must be. Preferred, also if absent: where it can be done. Required: a pod that does not fit there
    waits, and the start is released after its deadline."""


class ElasticPolicy(Model):
    """spec.runPolicy.elasticPolicy."""

    shrink_after_seconds: Positive
    """Seconds that a worker waits for a node, when the job starts or starts again, or grows. After that it goes on with
    those that have one, if they are minReplicas or more."""
    grow_after_seconds: Positive | None = None
    """Seconds after which a job that trains with fewer workers than replicas asks for looks for room for more, by a
    worker pod that waits for a node. So it is resized no more often than that. Only with recovery InPlace. Absent: all
    are tried again only when the job is started again."""


class RunPolicy(Model):
    """spec.runPolicy. Same names as in TFJob where they mean the same."""

    clean_pod_policy: Annotated[CleanPodPolicy, Field(strict=False)] = CleanPodPolicy.AUTO
    """Which pods are deleted when the job has finished. Auto: ps and evaluator pods and whatever still runs, so that
    GPUs are free, while finished chiefs and workers stay for their logs. Running: whatever still runs. All: all. None:
    none, so that parameter servers keep their GPUs until the job is deleted; but what is there of a job that could not
    be started goes, and what waits for a lost worker of one that failed."""
    ttl_seconds_after_finished: NotNegative | None = None
    """Delete the job and its pods this many seconds after it finished. Absent: keep it."""
    active_deadline_seconds: Positive64 | None = None
    """The job fails when it has been active for this many seconds, restarts included. The clock starts again after a
    suspension. Absent: no limit."""
    start_deadline_seconds: Positive = 1800
    """Seconds in which all replicas must become ready. After that all are released, and startPolicy decides."""
    start_policy: Annotated[StartPolicy, Field(strict=False)] = StartPolicy.RETRY
    """What happens when not all replicas could be started. Retry: release what there is and try again later. Fail:
    the job fails."""
    backoff_limit: NotNegative = 6
    """Restarts before the job fails. A failure of the whole gang counts once, however many pods it took with it, and
    so does each replica that restarts alone; evictions, lost nodes and the evaluator don't count."""
    restart_scope: Annotated[RestartScope, Field(strict=False)] = RestartScope.AUTO
    """What restarts when a replica fails. Auto: what the strategy needs, which under ParameterServer is the failed
    replica (with a ps also the chief), under trainer.mode predict the failed replica, and otherwise everything.
    Replica: under Custom the failed one, elsewhere as Auto. Gang: everything. A failed evaluator always restarts
    alone."""
    force_delete_after_seconds: NotNegative = 60
    """Seconds after the grace period of a pod's deletion after which it is forced, if its node is gone."""
    stall_seconds: Positive | None = None
    """Seconds after which the condition Stalled is True, if the bundled trainer has done no step, evaluation batch or
    save. Start-up and the first step are never a stall. Absent: half of spec.trainer.watchdog.stepSeconds. Without
    spec.trainer it says that the program reports its steps by tfgpujob_trainer, and status.progress has them too."""
    stall_policy: Annotated[StallPolicy, Field(strict=False)] = StallPolicy.REPORT
    """What happens to a job that is Stalled. Report: the condition and an event; the trainer's own watchdog ends the
    process later. Restart: it starts again from its last checkpoint, which backoffLimit counts."""
    voluntary_disruption: Annotated[VoluntaryDisruption, Field(strict=False)] = VoluntaryDisruption.AVOID
    """Whether autoscalers may take nodes with pods of this job away to save cost. Avoid: the pods have the annotations
    by which the cluster autoscaler and Karpenter leave them alone, where the template does not set these. A drain, a
    preemption and a lost node are not kept off. Allow: none. Counts from the next pod that is created."""
    recovery: Annotated[Recovery, Field(strict=False)] = Recovery.PODS
    """How a failure that is worth a restart is dealt with. InPlace: the training processes are started again in their
    pods, all of a gang together, within seconds; workers that predict each by itself, under ParameterServer the one
    that failed, with a parameter server the chief's too. backoffLimit counts it, and a second failure without a step in
    between ends the pods. Without spec.trainer it says that the program knows of this: tfgpu-supervise, of the package
    tfgpujob-trainer in its image, runs the command of the template, under OneDevice, Mirrored and MultiWorkerMirrored.
    Pods: the pods are deleted and created anew, as always with restartPolicy Never. Counts from the next pod that is
    created."""
    elastic_policy: ElasticPolicy | None = None
    """When a job with minReplicas or maxReplicas trains with fewer workers than replicas asks for, because there is no
    room for more. Not under Kueue nor with a pod group, which place all pods or none. Absent: it waits until all have a
    node."""
    spares: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Worker pods beside those of replicas that have started and wait, with their GPUs: when a worker's pod is deleted,
    evicted or on a lost node, one of them takes its place within seconds, and the pod that is created for it is a spare
    then. Only under MultiWorkerMirrored with spec.trainer and recovery InPlace, not with minReplicas or maxReplicas;
    without effect under Kueue or with a pod group. Counts from the next attempt. Absent: none."""
    suspend: bool = False
    """Stop all pods and keep the job. Training resumes from the last checkpoint when it is false again."""
    managed_by: Controller | None = None
    """The same as spec.managedBy, where a TFJob has it. MultiKueue reads spec.managedBy alone."""
    scheduling_policy: SchedulingPolicy | None = None
    """How the pods are scheduled: together, in which queue, how important, and in what time. What starts, starts whole
    without it too: see startDeadlineSeconds."""
    failure_log_lines: Annotated[int, Field(ge=0, le=100)] = 20
    """Last log lines of a failed replica that status.lastFailure keeps, up to 4,096 bytes. 0: none."""


class JobSpec(Model):
    """What to train, with how many pods and GPUs, and what to do when something fails."""

    strategy: Annotated[Strategy, Field(strict=False)]
    """How TensorFlow distributes the training. OneDevice: one process, one GPU. Mirrored: one process, all GPUs of
    its pod. MultiWorkerMirrored: several workers in step. ParameterServer: workers that don't wait for each other,
    variables on parameter servers. Custom: a TF_CONFIG as TFJob gives it, for programs that do it all themselves."""
    replica_specs: ReplicaSpecs
    """The pods, by role."""
    gpu: GpuSpec = Field(default_factory=GpuSpec)
    """The GPUs of the pods: how many, which kind, and how TensorFlow uses them."""
    trainer: TrainerSpec | None = None
    """What the bundled trainer runs: a module that defines model() and data(split) in plain Keras and imports nothing
    of this project. Leave spec.trainer out to run your own image with its own command."""
    image: Text | None = None
    """Image for all roles. Absent: with spec.trainer the bundled trainer's image. A template's own image wins."""
    success_policy: Annotated[SuccessPolicy, Field(strict=False)] = SuccessPolicy.DEFAULT
    """When the job has succeeded. Default: when the chief has, or without a chief, worker 0; under trainer.mode
    predict, all workers. AllWorkers: when all workers have. An elastic job that predicts: when one worker has, which it
    does once all rows are there."""
    run_policy: RunPolicy = Field(default_factory=RunPolicy)
    """How the job starts, restarts, ends and is cleaned up."""
    managed_by: Controller | None = None
    """Controller responsible for this job. Absent or tfgpu.dev/operator: this one. kueue.x-k8s.io/multikueue, with the
    label kueue.x-k8s.io/queue-name: MultiKueue runs it in another cluster, and this operator writes its Workload
    here. Anything else: this operator does not touch it. It can't be changed."""

    @property
    def predicts(self) -> bool:
        """Whether the workers are each on their own: they compute rows and have no collectives."""
        return self.trainer is not None and self.trainer.mode is Mode.PREDICT

    @property
    def traits(self) -> Traits:
        """What the operator knows of the strategy."""
        return TRAITS[self.strategy]

    @property
    def restarts_alone(self) -> bool:
        """Whether a replica that fails starts again by itself, or with a few others, and not with the whole gang."""
        scope, restart = self.run_policy.restart_scope, self.traits.restart
        if scope is RestartScope.GANG:
            return False
        by_scope = restart is Restart.BY_RESTART_SCOPE and scope is RestartScope.REPLICA
        return self.predicts or restart is Restart.REPLICA or by_scope

    @property
    def elastic(self) -> bool:
        """Whether the number of workers may change while the job runs."""
        worker = self.replica_specs.worker
        return worker is not None and worker.elastic

    @property
    def workers_come_and_go(self) -> bool:
        """Whether each of its workers joins and leaves by itself while the others go on."""
        return self.elastic and (self.predicts or self.traits.workers_come_and_go)

    @property
    def shares_parts(self) -> bool:
        """Whether its workers predict, and each takes the next part of the rows that nobody has."""
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
            # A chief that was started without a word of it takes nobody in.
            shape["workersComeAndGo"] = True
        text = json.dumps(shape, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
