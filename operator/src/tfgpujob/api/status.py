"""status: what the operator reports of a job. No floats: decimals are strings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tfgpujob.api.base import MAX_INT32, MAX_INT64, NotNegative, NotNegative64, StatusModel
from tfgpujob.names import Phase, Role

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
ExitCode = Annotated[int, Field(ge=-1, le=MAX_INT32)]


class JobCondition(StatusModel):
    """One aspect of the job's state, as a metav1.Condition."""

    type: Annotated[str, Field(max_length=316)]
    """Accepted, Created, Running, Restarting, Stalled, Degraded, GPUsIdle, Suspended, Succeeded, Failed or Finished."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    reason: Annotated[str, Field(max_length=1024)]
    """Why, in one CamelCase word that programs can rely on."""
    message: Annotated[str, Field(max_length=32768)]
    """Why, in words: where something is wrong, the field, the problem and the fix."""
    last_transition_time: Time
    """When the status last changed."""
    observed_generation: NotNegative64 | None = None
    """metadata.generation that the condition is based on."""


class ReplicaStatus(StatusModel):
    """The pods of one role."""

    desired: NotNegative = 0
    """Pods that the attempt has."""
    ready: NotNegative = 0
    """Pods that run and are ready."""
    active: NotNegative = 0
    """Pods that exist and have not ended."""
    succeeded: NotNegative = 0
    """Replicas that have succeeded."""
    failed: NotNegative = 0
    """Pods that have failed."""
    succeeded_indexes: list[NotNegative] | None = None
    """Replicas whose success is recorded: they never run again in this attempt."""


class ReplicaStatuses(StatusModel):
    """Counts by role; only roles that the job has."""

    chief: ReplicaStatus | None = None
    """The chief."""
    worker: ReplicaStatus | None = None
    """The workers."""
    ps: ReplicaStatus | None = None
    """The parameter servers."""
    evaluator: ReplicaStatus | None = None
    """The evaluator."""


class RestartRecord(StatusModel):
    """A replica that was restarted alone, or that has restarted its process in its pod."""

    role: Annotated[Role, Field(strict=False)]
    """Role of the replica."""
    index: NotNegative
    """Index of the replica."""
    restarts: NotNegative
    """How often it was restarted alone in this attempt: the label replica-restart of its pods."""
    last_counted_pod_uid: Annotated[str | None, Field(alias="lastCountedPodUID")] = None
    """uid of the pod whose failure was counted last, so that no failure is counted twice."""
    consecutive_failures: NotNegative | None = None
    """How often in a row it ended within 10 minutes. The delay before its next start doubles with each."""
    backoff_until: Time | None = None
    """It is not started before this time. Absent after the start."""
    in_place_restarts: NotNegative | None = None
    """How often its process was restarted in the pod below, as far as it has been counted. Only for workers that
    predict: each recovers by itself."""
    in_place_pod_uid: Annotated[str | None, Field(alias="inPlacePodUID")] = None
    """uid of that pod."""


class ResizeStatus(StatusModel):
    """A resize in place that is in progress."""

    workers: NotNegative
    """Workers of the gang after it."""
    least: NotNegative
    """The smallest number of workers that it had or was to have since this began."""
    generation: NotNegative64
    """metadata.generation of the job that requested it."""
    start_time: Time
    """When it began."""


class LimitStatus(StatusModel):
    """The limit on workers that runPolicy.elasticPolicy has set for lack of capacity."""

    asked: NotNegative
    """spec.replicaSpecs.worker.replicas when this was decided. After a change all workers are tried."""
    workers: NotNegative
    """Workers that the job trains with."""
    start_time: Time
    """Since when the limit applies."""
    probe: NotNegative | None = None
    """Number of workers up to which pods are created, to find out whether there is capacity. Absent: none are."""


class TolerationStatus(StatusModel):
    """A toleration, as in a pod."""

    key: str | None = None
    """Key of the taint. Absent: any."""
    operator: str | None = None
    """Exists or Equal."""
    value: str | None = None
    """Value of the taint."""
    effect: str | None = None
    """Effect of the taint. Absent: any."""
    toleration_seconds: Annotated[int, Field(ge=-MAX_INT64, le=MAX_INT64)] | None = None
    """For how long it is tolerated. Absent: without end."""


class PlacementStatus(StatusModel):
    """What Kueue adds to the pods of a role."""

    node_selector: dict[str, str] | None = None
    """Labels of the nodes, by the flavors that it was admitted to."""
    tolerations: list[TolerationStatus] | None = None
    """The flavors' tolerations."""
    labels: dict[str, str] | None = None
    """Labels that an admission check adds."""
    annotations: dict[str, str] | None = None
    """Annotations that an admission check adds."""


class PlanStatus(StatusModel):
    """What the attempt was started from. Defaults and images are resolved once for each attempt."""

    spec_hash: str
    """Digest of the fields of the spec that pods are built from."""
    counts: dict[str, NotNegative]
    """Pods by role. After a resize in place, the current number of workers."""
    ports: dict[str, list[NotNegative]]
    """Ports of the TensorFlow tasks of a pod, by role."""
    images: dict[str, str]
    """Image by role, and the image of wait-for-peers."""
    operator_version: str
    """Version of the operator that resolved the plan."""
    gang: str | None = None
    """The gang scheduler that has a pod group for this attempt. Absent: none."""
    scheduler_name: str | None = None
    """schedulerName of pods whose template sets none. Absent: the cluster's default."""
    resize: ResizeStatus | None = None
    """The change of the number of workers that is in progress without a new attempt. Absent: none."""
    limit: LimitStatus | None = None
    """Why it has fewer workers than replicas. Absent: replicas applies."""
    absent: list[NotNegative] | None = None
    """Indexes of lost workers that the others train without, until new pods join in their places; where workers join
    and leave by themselves, of those that have not joined yet; with spares, of the current spares. Absent: none."""
    shares_parts: bool | None = None
    """Whether the workers predict, join and leave by themselves, and each takes the next part of the rows that no other
    worker has."""
    spares: NotNegative | None = None
    """Worker pods in addition to counts, one of which replaces a lost worker. Absent: none."""
    queue: str | None = None
    """The Kueue queue that admitted the job. Absent: it started without Kueue."""
    placement: dict[str, PlacementStatus] | None = None
    """What Kueue adds to the pods, by role."""
    image_volumes: bool | None = None
    """Whether images of code and models are mounted as volumes. Absent: init containers copy their content."""


class RetryStatus(StatusModel):
    """A start that could not be completed and is retried."""

    not_before: Time | None = None
    """It is not retried before this time."""
    refusals: NotNegative | None = None
    """How often in a row it failed. The delay before the next try doubles with each."""
    object: str | None = None
    """The object that was refused: the next try creates it first and alone."""
    others: list[str] | None = None
    """Other objects that were refused while the attempt runs, and wait as well."""


class ProgressStatus(StatusModel):
    """How far the training is, as last reported by the bundled trainer's chief, or else worker 0."""

    phase: str | None = None
    """What it was doing: starting, caching, training, evaluating, saving, exporting."""
    waits_for: list[str] | None = None
    """Pods that have not started, for which it waits. Absent: it waits for none."""
    step: NotNegative64 | None = None
    """Optimizer steps done."""
    total_steps: NotNegative64 | None = None
    """Optimizer steps to do, if known."""
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Share of the steps that are done."""
    epoch: NotNegative64 | None = None
    """The epoch that is being trained, from 1."""
    total_epochs: NotNegative64 | None = None
    """Epochs to do, if known."""
    loss: str | None = None
    """Last training loss, as a decimal."""
    examples_per_second: str | None = None
    """Throughput of all workers together, as a decimal."""
    remaining_seconds: NotNegative64 | None = None
    """Estimated time of the remaining steps, without evaluations and saves."""
    gpu_use_percent: list[NotNegative] | None = None
    """Share of the last interval that each GPU of the replica was computing."""
    gpu_memory_mib: Annotated[list[NotNegative64] | None, Field(alias="gpuMemoryMiB")] = None
    """Peak memory that TensorFlow used on each of them."""
    in_place_restarts: NotNegative | None = None
    """How often its processes were restarted in their pods, as far as it has been counted."""
    in_place_pod_uid: Annotated[str | None, Field(alias="inPlacePodUID")] = None
    """uid of the pod that reported it: the chief's, or else worker 0's. Its last report may arrive in the next
    attempt."""
    time: Time | None = None
    """When this was first reported. An unchanged report is not written again."""


class GpuTimeStatus(StatusModel):
    """GPU time of all pods. Since `time`, `gpus` × the elapsed seconds are to be added."""

    seconds: NotNegative64
    """Seconds, times GPUs."""
    gpus: NotNegative
    """GPUs in use at that time."""
    time: Time
    """The end of the time that is counted."""


class GoodputParts(StatusModel):
    """Whole seconds by what they were spent on, as docs/goodput.md explains. Absent: none."""

    queued: NotNegative64 | None = None
    """Until the pod was scheduled."""
    pulling: NotNegative64 | None = None
    """Pulling images, and starting containers."""
    waiting: NotNegative64 | None = None
    """Waiting for the other replicas."""
    importing: NotNegative64 | None = None
    """Starting Python, TensorFlow and the user's module."""
    building: NotNegative64 | None = None
    """Building the model, the data and the steps."""
    restoring: NotNegative64 | None = None
    """Restoring a checkpoint, or finding that there is none."""
    tracing: NotNegative64 | None = None
    """The first step of each process."""
    input: NotNegative64 | None = None
    """Waiting for data."""
    all_reduce: NotNegative64 | None = None
    """Exchanging gradients with other workers, the wait for the slowest included."""
    saving: NotNegative64 | None = None
    """Checkpoints and the model, as far as training waited."""
    evaluating: NotNegative64 | None = None
    """Evaluating the validation and test splits."""
    recomputing: NotNegative64 | None = None
    """Repeating steps that had been done before."""
    useful: NotNegative64 | None = None
    """Steps that were done for the first time, without the other parts."""
    lost: NotNegative64 | None = None
    """From the last sign of life of a failed process until the failure was detected."""
    restarting: NotNegative64 | None = None
    """From a failure until the next process or pod."""
    backoff: NotNegative64 | None = None
    """Between two tries."""
    suspended: NotNegative64 | None = None
    """Suspended by runPolicy.suspend."""
    other: NotNegative64 | None = None
    """Not reported: programs without the bundled trainer, a lost pod."""


class GoodputBefore(GoodputParts):
    """The account up to when `pod` was first followed."""

    since: Time
    """When that was."""


class GoodputStatus(GoodputParts):
    """What the whole time of the job was spent on, as seen by its chief, or else worker 0: the seconds between
    metadata.creationTimestamp and `time`."""

    time: Time
    """The end of the time that is counted."""
    reached_step: NotNegative64 | None = None
    """The highest step that is known to have been done."""
    pod: str | None = None
    """uid of the pod that is, or was last, followed."""
    before: GoodputBefore | None = None
    """Present while that pod's account is open."""


class RecoveryStatus(StatusModel):
    """The last failure that training has recovered from, or is recovering from. Unknown times are absent."""

    how: Literal["InPlace", "Pods"]
    """Whether the processes were started again in their pods, or the pods were created again."""
    failed: Time
    """The last sign of life, or the end of the container."""
    detected: Time | None = None
    """When the supervisor or the operator detected it."""
    ended: Time | None = None
    """When the processes of the chief's pod had ended."""
    created: Time | None = None
    """When the chief's new pod was created."""
    started: Time | None = None
    """When its processes, or its container, started."""
    restored: Time | None = None
    """When the checkpoint had been read."""
    stepped: Time | None = None
    """When the first step ended that had not been done before."""


class DigestsStatus(StatusModel):
    """Digests of the images that pods have their code and models from, as reported by their kubelets. More than one:
    the tag was moved between two pulls."""

    code: list[str] | None = None
    """Digests of spec.trainer.code.image."""
    models: list[str] | None = None
    """Digests of spec.trainer.models.image."""


class CheckpointStatus(StatusModel):
    """The newest complete checkpoint."""

    step: NotNegative64 | None = None
    """Optimizer steps that it contains."""
    directory: str | None = None
    """Its directory, as the pods see it."""
    time: Time | None = None
    """When it was complete."""
    seconds: NotNegative | None = None
    """How long the save took, from the end of the step. The grace period of pods that are created next leaves time for
    it."""


class FailureStatus(StatusModel):
    """The failure that ended the last attempt, or a replica of it; of several, the first and most specific."""

    role: str | None = None
    """Role of the replica that failed first. Absent if none did: a deadline, a refused start."""
    index: NotNegative | None = None
    """Index of that replica."""
    container: Annotated[str, Field(max_length=63)] | None = None
    """The container that ended its pod, if it is not `tensorflow`: mostly an init container."""
    exit_code: ExitCode | None = None
    """Exit code of that container. Absent if the pod was evicted or lost."""
    reason: str | None = None
    """Kubernetes' reason: Error, OOMKilled, Evicted, PreemptionByScheduler, …"""
    cause: Annotated[str, Field(max_length=64)] | None = None
    """The cause, in one word that programs can rely on: Exception, BadConfig, LossNotFinite, DiskFull, OutOfMemory,
    HostOutOfMemory, LimitReached, Fenced, Stopped, PeerFailure, Hang, Killed, Crash, Drained, Tainted, Evicted,
    Preempted, NodeLost, NodeRefused, DeviceUnhealthy, Deleted, NotFetched, Command, Image, Unschedulable, Quota,
    Refused, Deadline, Unknown."""
    action: Annotated[str, Field(max_length=500)] | None = None
    """The fix, in one sentence."""
    message: Annotated[str, Field(max_length=4096)] | None = None
    """Kubernetes' message about the pod, the trainer's last message, and the last lines of the log:
    runPolicy.failureLogLines of them, 4,096 bytes."""
    time: Time | None = None
    """When it ended."""


class JobStatus(StatusModel):
    """What the operator knows of the job. Written only by the operator."""

    observed_generation: NotNegative64 | None = None
    """metadata.generation that this status is based on."""
    phase: Annotated[Phase | None, Field(strict=False)] = None
    """The state in one word, for people. Programs read the conditions."""
    conditions: Annotated[
        list[JobCondition],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = Field(default_factory=list)
    """The state by aspect. `kubectl wait --for=condition=Finished` covers success and failure."""
    ready: str | None = None
    """Required replicas that are ready or have succeeded, of all required: 3/4."""
    start_time: Time | None = None
    """When the job became active; again after a suspension."""
    completion_time: Time | None = None
    """When it succeeded or failed."""
    attempt: NotNegative | None = None
    """Number of the current attempt, from 1. Every start of the whole gang is an attempt."""
    attempt_start_time: Time | None = None
    """When the current attempt started, or may start."""
    restarts: NotNegative | None = None
    """Failures that counted against runPolicy.backoffLimit."""
    in_place_restarts: NotNegative | None = None
    """Those of `restarts` for which no pod was created: runPolicy.recovery."""
    resizes: NotNegative | None = None
    """How often the number of workers of an elastic job was changed."""
    disruptions: NotNegative | None = None
    """Evictions, preemptions and lost nodes, which don't count against runPolicy.backoffLimit."""
    consecutive_failures: NotNegative | None = None
    """Failures since the job last ran for 10 minutes. The delay before the next attempt doubles with each."""
    consecutive_disruptions: NotNegative | None = None
    """Disruptions since the job last ran for 10 minutes. After 50 the job fails."""
    replica_statuses: ReplicaStatuses | None = None
    """Counts by role."""
    restart_records: (
        Annotated[
            list[RestartRecord],
            Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["role", "index"]}),
        ]
        | None
    ) = None
    """Replicas that were restarted alone; only those that were."""
    plan: PlanStatus | None = None
    """What the current attempt was started from."""
    retry: RetryStatus | None = None
    """A start that could not be completed and is retried."""
    progress: ProgressStatus | None = None
    """How far the training is."""
    gpu_time: GpuTimeStatus | None = None
    """GPU time of the job, updated with each write of the status."""
    goodput: GoodputStatus | None = None
    """What the job's time was spent on, updated with each write of the status."""
    last_recovery: RecoveryStatus | None = None
    """The steps of the last recovery from a failure, with their times."""
    last_checkpoint: CheckpointStatus | None = None
    """The newest complete checkpoint."""
    last_failure: FailureStatus | None = None
    """The failure that ended the last attempt, or a replica of it."""
    digests: DigestsStatus | None = None
    """The images of code and models."""
    selector: str | None = None
    """Label selector of the pods that /scale counts: all pods of the job, or the workers of an elastic job."""
