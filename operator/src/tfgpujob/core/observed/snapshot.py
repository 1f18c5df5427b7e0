"""The input of the core, a Snapshot of one job, and its output, an Outcome. Plain values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol

from tfgpujob import names
from tfgpujob.core.observed.progress_report import Report
from tfgpujob.names import Role

Object = Mapping[str, Any]
"""A Kubernetes object as the API server returned it: never changed in place."""


class Kind(StrEnum):
    """The kinds of objects that the operator reads or writes. Nodes and namespaces are cluster-scoped and only read;
    claims and claim templates are only created, and never watched."""

    JOB = "TFGPUJob"
    POD = "Pod"
    SERVICE = "Service"
    NETWORK_POLICY = "NetworkPolicy"
    CLAIM = "PersistentVolumeClaim"
    VOLCANO_POD_GROUP = "PodGroup.v1beta1.scheduling.volcano.sh"
    COSCHEDULING_POD_GROUP = "PodGroup.v1alpha1.scheduling.x-k8s.io"
    NATIVE_POD_GROUP = "PodGroup.v1beta1.scheduling.k8s.io"
    NATIVE_V1ALPHA3_POD_GROUP = "PodGroup.v1alpha3.scheduling.k8s.io"
    NATIVE_V1ALPHA2_POD_GROUP = "PodGroup.v1alpha2.scheduling.k8s.io"
    DEVICE_TEMPLATE = "ResourceClaimTemplate.v1.resource.k8s.io"
    DEVICE_TEMPLATE_V1BETA2 = "ResourceClaimTemplate.v1beta2.resource.k8s.io"
    WORKLOAD_V1BETA2 = "Workload.v1beta2.kueue.x-k8s.io"
    WORKLOAD_V1BETA1 = "Workload.v1beta1.kueue.x-k8s.io"
    FLAVOR_V1BETA2 = "ResourceFlavor.v1beta2.kueue.x-k8s.io"
    FLAVOR_V1BETA1 = "ResourceFlavor.v1beta1.kueue.x-k8s.io"
    WORKLOAD_PRIORITY_V1BETA2 = "WorkloadPriorityClass.v1beta2.kueue.x-k8s.io"
    WORKLOAD_PRIORITY_V1BETA1 = "WorkloadPriorityClass.v1beta1.kueue.x-k8s.io"
    POD_PRIORITY = "PriorityClass.v1.scheduling.k8s.io"
    NODE = "Node"
    NAMESPACE = "Namespace"


def _api_version(kind: Kind) -> str:
    """apiVersion of a kind as kubectl writes it if there are several: Kind.version.group."""
    _, version, group = kind.split(".", 2)
    return f"{group}/{version}"


POD_GROUPS: Final[Mapping[Kind, str]] = {kind: _api_version(kind) for kind in Kind if kind.startswith("PodGroup.")}
"""The pod groups of all gang schedulers (core/observed/gang.py), and their apiVersions."""
DEVICE_TEMPLATES: Final[Mapping[Kind, str]] = {
    kind: _api_version(kind) for kind in (Kind.DEVICE_TEMPLATE, Kind.DEVICE_TEMPLATE_V1BETA2)
}
"""The versions of ResourceClaimTemplate that are written alike, the newest first, and their apiVersions."""
KUEUE: Final[Mapping[Kind, str]] = {kind: _api_version(kind) for kind in Kind if kind.endswith(".kueue.x-k8s.io")}
"""Kueue's kinds, and their apiVersions."""
WORKLOADS: Final = tuple(kind for kind in KUEUE if kind.startswith("Workload."))
"""The newest version first."""
BEFORE_PODS: Final = frozenset({Kind.NETWORK_POLICY, *POD_GROUPS})
"""What an attempt needs before its first pod, which it isolates or schedules."""


@dataclass(frozen=True, slots=True)
class Termination:
    """How a container ended: `tensorflow`, or another one that ended the pod."""

    exit_code: int
    signal: int | None
    reason: str
    message: str
    """The termination message: at most 4,096 bytes, as the kubelet cuts it. Untrusted text."""
    finished_at: str
    container: str = names.CONTAINER
    is_init: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, trimmed to what decisions need: 1,000 jobs of 4 pods must fit in the store."""

    name: str
    uid: str
    resource_version: str
    job_name: str
    """The job-name label; empty when the pod has none."""
    owner_uid: str
    """The uid of the controlling TFGPUJob; empty when something else, or nothing, controls the pod."""
    role: str
    index: int
    attempt: int
    """The attempt label; 0 when absent or not a number."""
    replica_restart: int
    created_at: str
    deleting: bool
    deletion_due: str
    """metadata.deletionTimestamp: when its grace period ends. Empty when it is not being deleted."""
    phase: str
    """Pending, Running, Succeeded, Failed or Unknown."""
    ready: bool
    node: str
    status_reason: str
    """status.reason: Evicted, Preempting, NodeLost, …"""
    waiting_reason: str
    """Why the pod is not running yet: ImagePullBackOff, Unschedulable, …; empty when nothing is wrong."""
    waiting_message: str
    disruption: str
    """The reason of its DisruptionTarget condition, which names the cause of the disruption; empty without one."""
    termination: Termination | None
    running_init: str = ""
    """The init container that runs; empty: none does."""
    lingers: bool = False
    """Another container of the template still runs though `tensorflow` has ended, so that the pod keeps its node. A
    sidecar among the init containers does not count: its kubelet ends that."""
    status_message: str = ""
    """status.message, the cluster's sentence about status_reason; else that of its DisruptionTarget condition."""
    waited_in_vain: bool = False
    """It has waited for its peers for as long as they may take to start, and ended."""
    ip: str = ""
    """status.podIP; empty until it has one."""
    started_at: str = ""
    """status.startTime: when its kubelet accepted it; empty before."""
    progress_token: str = field(default="", repr=False)
    """Token that its trainer requires for GET /progress; empty: none."""
    recovery_token: str = field(default="", repr=False)
    """Token that it shares with the other pods of its attempt, if they may restart in place."""
    unhealthy_device: str = ""
    """Devices of its `tensorflow` container that its kubelet says are not healthy, for a person; empty if none."""
    ended_at: str = ""
    """When it failed, or its node became unreachable, as recorded by the cluster and not by its container; else
    empty."""
    scheduled_at: str = ""
    """When it got its node; empty before."""
    gate_began: str = ""
    gate_ended: str = ""
    """When its wait-for-peers init container began, and when it ended."""
    program_began: str = ""
    """When its `tensorflow` container began; empty before."""
    code_digest: str = ""
    """Digest of the image that its code comes from, as its kubelet reports it; empty: it has none, or none is
    reported."""
    models_digest: str = ""
    """The same of the image that its models come from."""
    no_room: str = ""
    """The scheduler's last message that names what is missing; empty once it has a node. A gang scheduler retries a
    pod, and its next message may only say that the pod waits for the others."""


@dataclass(frozen=True, slots=True)
class Dependent:
    """The service, the NetworkPolicy or a pod group with the job's name: the job's own, or a foreign one."""

    name: str
    uid: str
    resource_version: str
    owner_uid: str
    owner_job: str
    """The name of the controlling TFGPUJob; empty when something else, or nothing, controls the object."""
    deleting: bool
    attempt: int = 0
    """The attempt label, which only a pod group has; 0 for the others."""


@dataclass(frozen=True, slots=True)
class ResizeTo:
    """Request to the leader of a gang for another number of workers."""

    generation: int
    """metadata.generation of the persisted `Resize`."""
    losses: int = 0
    """As in `WhoTrains`."""


@dataclass(frozen=True, slots=True)
class WhoTrains:
    """Request to the leader of a gang: which workers train, as some are lost."""

    losses: int
    """Counted restarts of its pods: an answer from before the last loss does not match."""


Question = ResizeTo | WhoTrains


@dataclass(frozen=True, slots=True)
class Agreed:
    """The leader can do what it was asked for."""

    workers: int
    """Workers of the round that runs."""
    wanted: int
    """Workers of the round that the leader is about to begin; while it does something else, not what it was asked
    for."""
    without: frozenset[int] = frozenset()
    """Indexes of workers that the round does without."""


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str


@dataclass(frozen=True, slots=True)
class Silent:
    """It has given no answer within the time that an answer is waited for."""


Said = Agreed | Refused | Silent


@dataclass(frozen=True, slots=True)
class LeaderAnswer:
    """The last answer of a gang's leader to PUT /workers."""

    pod_uid: str
    question: Question
    said: Said


@dataclass(frozen=True, slots=True)
class Workload(Dependent):
    """Kueue's Workload with the job's name."""

    generation: int = 0
    pod_sets: str = ""
    """The annotation with the digest of its requests; empty when it has none."""
    active: bool = True
    """False: an administrator, or Kueue itself, has deactivated it."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Pods that it requests, by pod set, which is a role."""
    stop_seconds: int = 0
    """The longest grace period of its pods."""
    status: Object = field(default_factory=dict)
    """The whole status: when one condition is changed, the others are written as they are."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known of one job at one time: the cache, and live lookups."""

    job: Object
    """The TFGPUJob."""
    pods: tuple[Pod, ...] = ()
    """Every pod whose job-name label is this job's, whatever its owner."""
    service: Dependent | None = None
    """The service with the job's name, if the store knows one."""
    absent: frozenset[str] = frozenset()
    """Names of pods that a live GET has just shown not to exist: the answer to `Outcome.lookups`."""
    looked_up: frozenset[str] = frozenset()
    """Names of all pods that were just looked up: `pods` shows them as they are, or they are `absent`."""
    lost_nodes: frozenset[str] = frozenset()
    """Those of the pods' nodes that are gone or not ready. Empty where the operator may not see nodes."""
    image_volumes: bool = False
    """Whether every node mounts folders of images as volumes. False where the operator may not see nodes."""
    reports: Mapping[str, Report] = field(default_factory=dict)
    """The last progress report of each pod, by uid. May be stale: nothing but the status depends on it."""
    leader_answer: LeaderAnswer | None = None
    """The last answer of its leader. None: it was not asked, or has not answered yet."""
    deferred_since: datetime | None = None
    """Since when `finalize_status` has deferred a status write (`StatusUpdate.deferred`); None when it has not."""
    network_policy: Dependent | None = None
    """The NetworkPolicy with the job's name, if the store knows one. Only where jobs get one."""
    pod_groups: Mapping[Kind, Dependent] = field(default_factory=dict)
    """The pod groups with the job's name that the store knows. Only of gang schedulers that the operator uses."""
    departed: Pod | None = None
    """The pod whose ledger status.goodput follows, as it was at its end, if it is gone and that is not recorded yet."""
    workload: Workload | None = None
    """The Workload with the job's name, if the store knows one. Only where Kueue is used."""
    cluster_objects: Mapping[Kind, Mapping[str, Object]] = field(default_factory=dict)
    """By kind and name, trimmed: Kueue's ResourceFlavors and WorkloadPriorityClasses, and PriorityClasses. Only where
    Kueue is used."""
    quarantined: str = ""
    """Why it is quarantined for its cost, for people: its spec is not read. Empty: it is not."""


@dataclass(frozen=True, slots=True)
class Config:
    """The operator's own settings. One value for the life of the process."""

    operator_image: str
    trainer_image: str
    operator_version: str
    allow_host_namespaces: frozenset[str] = frozenset()
    """Namespaces in which host access (`api/rules/host.py`) is allowed; `*` allows all."""
    allowed_service_accounts: frozenset[str] = frozenset()
    """`namespace/name` of the ServiceAccounts that jobs may use, `*/name` in each namespace; empty allows any of the
    job's namespace."""
    restricted: bool = False
    """Whether pods keep to Pod Security "restricted", but for namespaces with host access."""
    network_policy_namespaces: frozenset[str] = frozenset()
    """Namespaces in which each job gets a NetworkPolicy; `*` means all."""
    progress_key: bytes = field(default=b"", repr=False)
    """Key of the tokens of the pods that this process creates. Empty: they get none."""
    operator_namespace: str = ""
    operator_labels: tuple[tuple[str, str], ...] = ()
    """Namespace and labels of the operator's own pods, which these NetworkPolicies admit."""
    gangs: tuple[tuple[str, Kind], ...] | None = None
    """The gang schedulers that jobs may use, and the kind of pod group that the cluster serves for each. None: without
    a cluster, so a job that names one runs without it."""
    default_gang: str = ""
    """What `gang: Auto` means where there are several."""
    coscheduling_scheduler: str = ""
    """The schedulerName of kube-scheduler with the coscheduling plugin; empty: the cluster's default scheduler."""
    volume_claims: bool = True
    """Whether the operator has the right to create the claims of volumeClaimTemplates."""
    device_claims: bool = True
    """Whether it has the right to create the ResourceClaimTemplate of spec.gpu.claim."""
    device_template: Kind | None = Kind.DEVICE_TEMPLATE
    """Its kind that the cluster serves; None: no supported version of dynamic resource allocation."""
    image_volumes: bool = True
    """Whether images of code and models become volumes, where every node mounts such."""
    idle_seconds: int = 0
    """Seconds after which a job without suspendIdleSeconds whose GPUs do nothing is GPUsIdle; 0: never."""
    kueue_enabled: bool = False
    """Whether jobs with Kueue's label wait in its queues."""
    queue_required: bool = False
    """Whether a job without that label waits until it has one."""
    kueue: Kind | None = None
    """The kind of Workload that the cluster serves; None: none, or Kueue is not enabled."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this object: the uid is a precondition."""

    kind: Kind
    name: str
    uid: str
    resource_version: str = ""
    """Also a precondition, when set."""
    force: bool = False
    """Grace period 0: only for a pod whose node is gone."""


class Creation(Protocol):
    """Create this object in the job's namespace. A value: equal ones create equal objects.

    `body` and `needs` may be built when they are read, because a template may be large and its pods many: read them
    only before sending, and don't keep them.
    """

    @property
    def kind(self) -> Kind: ...
    @property
    def name(self) -> str: ...
    @property
    def replica(self) -> tuple[Role, int] | None:
        """The replica of a pod; None for other kinds."""
        ...

    @property
    def body(self) -> Object: ...
    @property
    def needs(self) -> tuple[Create, ...]:
        """What must exist before it, and stays when it is deleted: the claims of a pod, its claim template. Each is
        created unless an object of its name exists; if one is refused, so is this."""
        ...


@dataclass(frozen=True, slots=True)
class Create:
    """A `Creation` whose body is small."""

    kind: Kind
    body: Object
    needs: tuple[Create, ...] = ()

    @property
    def name(self) -> str:
        name: str = self.body["metadata"]["name"]
        return name

    @property
    def replica(self) -> tuple[Role, int] | None:
        labels = self.body["metadata"].get("labels") or {}
        if self.kind is not Kind.POD:
            return None
        return Role(labels[names.LABEL_REPLICA_TYPE]), int(labels[names.LABEL_REPLICA_INDEX])


@dataclass(frozen=True, slots=True)
class StatusWrite:
    """Replace the status of this object, in this version: for a Workload, whose status others write too."""

    kind: Kind
    body: Object
    """Its name, uid and resourceVersion, and the status."""


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event about the job. Written last, and never retried: status is the truth."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server refused a create."""

    kind: Kind
    name: str
    code: int
    """HTTP status: 403, 409, 422, 429, 5xx."""
    reason: str
    """metav1.Status reason: Forbidden, AlreadyExists, Invalid, …"""
    message: str
    holder: Pod | Dependent | None = None
    """On 409: the object that has the name, read by name, because an unlabelled pod never arrives by watch. None: a
    claim that will be gone soon."""
    needed_by: str = ""
    """Name of the create that was not tried because of this one, which it needs."""

    @property
    def create(self) -> str:
        """Name of the create of the Outcome that failed with it."""
        return self.needed_by or self.name


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be done for one job, in this order.

    0. If `lookups` is not empty nothing else is set: GET each of these pods, put what is found into the store,
       and reconcile again with the names that gave 404 in `Snapshot.absent`. No pod is deleted or restarted on the
       word of a stale cache;
    1. `intent`, when not None, is persisted to /status; if that fails, nothing below happens;
    2. when there is no intent but there are creates, or `certain`, the job is read again: it must still have the same
       uid, the same resourceVersion and no deletionTimestamp, or the whole outcome is discarded;
    3. `deletes`;
    4. `creates`, stage by stage (`stages`): what must be there before a pod, the one called `first`, and the rest; each
       stage only if nothing of the one before was refused. What was refused while others have no answer is shown
       meanwhile, as `report_refusals` says;
    5. `finalize_status(snapshot, outcome, refusals, …)` gives the last status, or None if it is not worth a write;
    6. events; 7. `status_writes`; 8. the job is requeued at `requeue_at`.
    """

    status: Object | None = None
    """The status after everything below has succeeded; None when there is nothing to write."""
    lookups: tuple[str, ...] = ()
    intent: Object | None = None
    deletes: tuple[Delete, ...] = ()
    certain: bool = False
    """The deletes are of pods of the current attempt, which must be checked against the job as it is now."""
    creates: tuple[Creation, ...] = ()
    first: str = ""
    """Name of the create that was refused last time: a retry must not start what it would have to release."""
    status_writes: tuple[StatusWrite, ...] = ()
    """Statuses of Workloads."""
    events: tuple[Event, ...] = ()
    requeue_at: datetime | None = None

    @property
    def stages(self) -> tuple[tuple[Creation, ...], ...]:
        """`creates` in the order in which they are sent. A pod that its NetworkPolicy came after could be reached
        before; a scheduler that finds no pod group may bind the pod by itself."""
        before = tuple(create for create in self.creates if create.kind in BEFORE_PODS)
        others = [create for create in self.creates if create.kind not in BEFORE_PODS]
        alone = tuple(create for create in others if create.name == self.first)
        return before, alone, tuple(create for create in others if create.name != self.first)


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """What remains to be written once the API server has answered all creates."""

    status: Object | None = None
    """None when the status in the cluster is good enough."""
    events: tuple[Event, ...] = ()
    requeue_at: datetime | None = None
    deferred: bool = False
    """The status write is deferred until `requeue_at`, to be combined with another."""
