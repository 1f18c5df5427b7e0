"""status: what the operator says about a job. No floats: decimals are strings."""

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
    """Accepted, Created, Running, Restarting, Stalled, Degraded, Suspended, Succeeded, Failed or Finished."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is so."""
    reason: Annotated[str, Field(max_length=1024)]
    """Why, in one word that programs can rely on."""
    message: Annotated[str, Field(max_length=32768)]
    """Why, for a person: the field, the problem and the fix where something is wrong."""
    last_transition_time: Time
    """When the status last changed."""
    observed_generation: NotNegative64 | None = None
    """metadata.generation that this was judged by."""


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
    """A replica that was restarted on its own, or has started its process again in its pod."""

    role: Annotated[Role, Field(strict=False)]
    """Role of the replica."""
    index: NotNegative
    """Index of the replica."""
    restarts: NotNegative
    """How often it was started again on its own in this attempt: its pods' label replica-restart."""
    last_counted_pod_uid: Annotated[str | None, Field(alias="lastCountedPodUID")] = None
    """uid of the pod whose failure was counted last, so that none is counted twice."""
    consecutive_failures: NotNegative | None = None
    """How often in a row it ended within 10 minutes. The delay before its next start doubles with each."""
    backoff_until: Time | None = None
    """It is not started again before this moment. Absent once it was."""
    in_place_restarts: NotNegative | None = None
    """How often its process was started again in the pod below, as far as it has been counted. Only of workers that
    predict: each recovers by itself."""
    in_place_pod_uid: Annotated[str | None, Field(alias="inPlacePodUID")] = None
    """uid of that pod."""


class ResizeStatus(StatusModel):
    """A resize in place that is under way."""

    workers: NotNegative
    """Workers that the gang is to have."""
    least: NotNegative
    """The fewest that it had or was to have since this began."""
    generation: NotNegative64
    """metadata.generation of the job that asked for it."""
    start_time: Time
    """When it began."""


class LimitStatus(StatusModel):
    """What runPolicy.elasticPolicy makes of a lack of room."""

    asked: NotNegative
    """What replicas was when this was decided: another number is tried as a whole."""
    workers: NotNegative
    """Workers that the job is to train with."""
    start_time: Time
    """Since when it does."""
    probe: NotNegative | None = None
    """Workers up to which pods are created, to find out whether there is room for them. Absent: none are."""


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
    """For how long it is tolerated. Absent: for ever."""


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
    """What the attempt was started from. Defaults and images are resolved once an attempt."""

    spec_hash: str
    """Digest of the part of the spec that shapes the pods."""
    counts: dict[str, NotNegative]
    """Pods by role. After a resize in place, the workers that the gang has by now."""
    ports: dict[str, list[NotNegative]]
    """Ports of the TensorFlow tasks of a pod, by role."""
    images: dict[str, str]
    """Image by role, and the peer gate's."""
    operator_version: str
    """Version of the operator that resolved it."""
    gang: str | None = None
    """The gang scheduler that has a pod group of this attempt. Absent: none."""
    scheduler_name: str | None = None
    """schedulerName of pods whose template names none. Absent: the cluster's default."""
    resize: ResizeStatus | None = None
    """The change of the number of workers that is under way without a new attempt. Absent: none."""
    limit: LimitStatus | None = None
    """Why it has fewer workers than replicas asks for. Absent: nothing but what replicas says counts."""
    absent: list[NotNegative] | None = None
    """Indexes of lost workers that the others train without, until new pods join in their places; where workers come
    and go, of those that have not come yet; where there are spares, of those that are spares now. Absent: none."""
    shares_parts: bool | None = None
    """Whether the workers predict and come and go, and each takes the next part of the rows that nobody has."""
    spares: NotNegative | None = None
    """Worker pods beside those of counts, of which one takes the place of a lost worker. Absent: none."""
    queue: str | None = None
    """The queue of Kueue that admitted it. Absent: it began without Kueue."""
    placement: dict[str, PlacementStatus] | None = None
    """What Kueue adds to the pods, by role."""
    image_volumes: bool | None = None
    """Whether images of code and models are mounted as volumes. Absent: init containers copy what is in them."""


class RetryStatus(StatusModel):
    """A start that could not be completed and is tried again."""

    not_before: Time | None = None
    """It is not tried again before this moment."""
    refusals: NotNegative | None = None
    """How often it failed in a row. The delay before the next try doubles with each."""
    object: str | None = None
    """The object that was refused: it goes first and alone at the next try of a start."""
    others: list[str] | None = None
    """What else was refused while the attempt runs, and waits as well."""


class ProgressStatus(StatusModel):
    """How far the training is, as the bundled trainer's chief, or else worker 0, told last."""

    phase: str | None = None
    """What it was doing: starting, caching, training, evaluating, saving, exporting."""
    step: NotNegative64 | None = None
    """Optimizer steps done."""
    total_steps: NotNegative64 | None = None
    """Optimizer steps to do, if known."""
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Share of the steps that is done."""
    epoch: NotNegative64 | None = None
    """The epoch that is being trained, from 1."""
    total_epochs: NotNegative64 | None = None
    """Epochs to do, if known."""
    loss: str | None = None
    """Last training loss, as a decimal."""
    examples_per_second: str | None = None
    """Throughput of all workers together, as a decimal."""
    remaining_seconds: NotNegative64 | None = None
    """Estimated time of the steps to come, without evaluations and saves."""
    gpu_use_percent: list[NotNegative] | None = None
    """How much of the last moment each GPU of the replica computed."""
    gpu_memory_mib: Annotated[list[NotNegative64] | None, Field(alias="gpuMemoryMiB")] = None
    """The most that TensorFlow has used on each of them."""
    in_place_restarts: NotNegative | None = None
    """How often its processes were started again in their pods, as far as it has been counted."""
    in_place_pod_uid: Annotated[str | None, Field(alias="inPlacePodUID")] = None
    """uid of the pod that told so: the chief's, or else worker 0's. Its last words may come in the next attempt."""
    time: Time | None = None
    """When this was told first: while nothing changes, nothing is written."""


class GpuTimeStatus(StatusModel):
    """How long all pods have held their GPUs. Until status says otherwise, gpus × the time since adds up."""

    seconds: NotNegative64
    """Seconds, times GPUs."""
    gpus: NotNegative
    """GPUs that were held at that moment."""
    time: Time
    """Up to when this counts."""


class GoodputParts(StatusModel):
    """Whole seconds by what they went into, as docs/goodput.md explains. Absent: none."""

    queued: NotNegative64 | None = None
    """Until the pod had a node."""
    pulling: NotNegative64 | None = None
    """Images, and starting containers."""
    waiting: NotNegative64 | None = None
    """For the other replicas."""
    importing: NotNegative64 | None = None
    """Starting Python, TensorFlow and the user's module."""
    building: NotNegative64 | None = None
    """Model, data and steps."""
    restoring: NotNegative64 | None = None
    """A checkpoint, or finding that there is none."""
    tracing: NotNegative64 | None = None
    """The first step of each process."""
    input: NotNegative64 | None = None
    """Waiting for data."""
    all_reduce: NotNegative64 | None = None
    """Exchanging gradients with other workers, the wait for the slowest included."""
    saving: NotNegative64 | None = None
    """Checkpoints and the model, as far as training waited."""
    evaluating: NotNegative64 | None = None
    """Validation and test splits."""
    recomputing: NotNegative64 | None = None
    """Steps that had been done before."""
    useful: NotNegative64 | None = None
    """Steps that were done for the first time, without what is named above."""
    lost: NotNegative64 | None = None
    """From the last sign of life of a process that failed until that was noticed."""
    restarting: NotNegative64 | None = None
    """From a failure until the next process or pod."""
    backoff: NotNegative64 | None = None
    """Between two tries."""
    suspended: NotNegative64 | None = None
    """By runPolicy.suspend."""
    other: NotNegative64 | None = None
    """What nobody has told: programs without the bundled trainer, a pod that was lost."""


class GoodputBefore(GoodputParts):
    """The account up to when `pod` began to be followed."""

    since: Time
    """When that was."""


class GoodputStatus(GoodputParts):
    """What all of the job's time went into, as its chief, or else worker 0, has lived it: the seconds between
    metadata.creationTimestamp and `time`."""

    time: Time
    """Up to when this counts."""
    reached_step: NotNegative64 | None = None
    """The highest step that is known to have been done."""
    pod: str | None = None
    """uid of the pod that is followed, or was last."""
    before: GoodputBefore | None = None
    """Present while that pod's account is open."""


class RecoveryStatus(StatusModel):
    """The last failure that training came back from, or is about to. Moments that are not known are absent."""

    how: Literal["InPlace", "Pods"]
    """Whether the processes were started again in their pods, or pods created anew."""
    failed: Time
    """The last sign of life, or when the container ended."""
    detected: Time | None = None
    """Noticed: by the supervisor, or by the operator."""
    ended: Time | None = None
    """The processes of the chief's pod are gone."""
    created: Time | None = None
    """The chief's new pod was created."""
    started: Time | None = None
    """Its processes, or its container, began."""
    restored: Time | None = None
    """The checkpoint was read."""
    stepped: Time | None = None
    """The first step that had not been done before."""


class DigestsStatus(StatusModel):
    """Digests of images that pods have their code and models from, as their kubelets tell them. More than one: somebody
    has moved the tag between two pulls."""

    code: list[str] | None = None
    """Of spec.trainer.code.image."""
    models: list[str] | None = None
    """Of spec.trainer.models.image."""


class CheckpointStatus(StatusModel):
    """The newest complete checkpoint."""

    step: NotNegative64 | None = None
    """Optimizer steps it holds."""
    directory: str | None = None
    """Where it is, as the pods see it."""
    time: Time | None = None
    """When it was complete."""
    seconds: NotNegative | None = None
    """How long the save took, from the end of the step. The pods that are created next have time for it when they are
    stopped."""


class FailureStatus(StatusModel):
    """The failure that stopped the last attempt, or a replica of it. Of several, the first and most specific."""

    role: str | None = None
    """Role of the replica that failed first. Absent if none did: a deadline, a refused start."""
    index: NotNegative | None = None
    """Index of that replica."""
    container: Annotated[str, Field(max_length=63)] | None = None
    """The container that ended its pod, if that is not `tensorflow`: mostly an init container."""
    exit_code: ExitCode | None = None
    """Exit code of that container. Absent if the pod was evicted or lost."""
    reason: str | None = None
    """What Kubernetes called it: Error, OOMKilled, Evicted, PreemptionByScheduler, …"""
    cause: Annotated[str, Field(max_length=64)] | None = None
    """What it was, in one word that programs can rely on: Exception, BadConfig, LossNotFinite, DiskFull, OutOfMemory,
    HostOutOfMemory, LimitReached, Fenced, Stopped, PeerFailure, Hang, Killed, Crash, Drained, Tainted, Evicted,
    Preempted, NodeLost, NodeRefused, DeviceUnhealthy, Deleted, NotFetched, Command, Image, Unschedulable, Quota,
    Refused, Deadline, Unknown."""
    action: Annotated[str, Field(max_length=500)] | None = None
    """What to do about it, in one sentence."""
    message: Annotated[str, Field(max_length=4096)] | None = None
    """What Kubernetes said of the pod, what the trainer said last, and the last lines of the log:
    runPolicy.failureLogLines of them, 4,096 bytes."""
    time: Time | None = None
    """When it ended."""


class JobStatus(StatusModel):
    """What the operator knows of the job. Written by the operator only."""

    observed_generation: NotNegative64 | None = None
    """metadata.generation that this status was made from."""
    phase: Annotated[Phase | None, Field(strict=False)] = None
    """The state in one word, for a person. Programs read the conditions."""
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
    """Number of the current attempt, from 1. Every start of the whole gang is one."""
    attempt_start_time: Time | None = None
    """When the current attempt was begun, or may begin."""
    restarts: NotNegative | None = None
    """Failures that counted against runPolicy.backoffLimit."""
    in_place_restarts: NotNegative | None = None
    """Those of `restarts` for which no pod was created: runPolicy.recovery."""
    resizes: NotNegative | None = None
    """How often an elastic job has gone on with another number of workers."""
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
    """Replicas that were restarted on their own; only those that were."""
    plan: PlanStatus | None = None
    """What the current attempt was started from."""
    retry: RetryStatus | None = None
    """A start that could not be completed and is tried again."""
    progress: ProgressStatus | None = None
    """How far the training is."""
    gpu_time: GpuTimeStatus | None = None
    """What the job has cost in GPUs, brought up to date with each write of the status."""
    goodput: GoodputStatus | None = None
    """What the job's time went into, brought up to date with each write of the status."""
    last_recovery: RecoveryStatus | None = None
    """How long the job took to come back from its last failure, step by step."""
    last_checkpoint: CheckpointStatus | None = None
    """The newest complete checkpoint."""
    last_failure: FailureStatus | None = None
    """The failure that stopped the last attempt, or a replica of it."""
    digests: DigestsStatus | None = None
    """Which images code and models came from."""
    selector: str | None = None
    """Label selector of the pods that /scale counts: those of the job, or of an elastic job its workers."""
