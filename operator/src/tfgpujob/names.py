"""Every label, annotation, condition type, reason and fixed name.

What other tools match on (labels, condition types, reasons, container and port names) is API: it is added to, never
renamed.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

GROUP: Final = "tfgpu.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "TFGPUJob"
PLURAL: Final = "tfgpujobs"
SINGULAR: Final = "tfgpujob"
SHORT_NAME: Final = "tfj"

CONTROLLER: Final = f"{GROUP}/operator"
"""The value of spec.managedBy that means this operator; absent means the same."""
MULTIKUEUE: Final = "kueue.x-k8s.io/multikueue"
"""The value of spec.managedBy with which Kueue chooses the cluster of the job."""
FIELD_OWNER: Final = "tfgpu-operator"

# Labels of pods and services.
LABEL_JOB_NAME: Final = f"{GROUP}/job-name"
LABEL_REPLICA_TYPE: Final = f"{GROUP}/replica-type"
LABEL_REPLICA_INDEX: Final = f"{GROUP}/replica-index"
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
LABEL_REPLICA_RESTART: Final = f"{GROUP}/replica-restart"
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""On a job: its LocalQueue of Kueue."""
LABEL_QUEUE_PRIORITY: Final = "kueue.x-k8s.io/priority-class"
"""On a job: the WorkloadPriorityClass that orders it there; absent: its pods' PriorityClass."""
PREBUILT_WORKLOAD: Final = "kueue.x-k8s.io/prebuilt-workload-name"
"""On a job that MultiKueue has sent into this cluster: its Workload, which was sent with it. An annotation from Kueue
0.18 on, before that a label."""
LABEL_QUEUE_JOB_UID: Final = "kueue.x-k8s.io/job-uid"
"""On a Workload: the uid of its job, which Kueue reports when that job preempts another."""
LABEL_APP_NAME: Final = "app.kubernetes.io/name"
LABEL_APP_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_APP_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"

AVOID_VOLUNTARY_DISRUPTION: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations that keep the cluster autoscaler and Karpenter from evicting a pod."""
ANNOTATION_TRAINER_CONFIG: Final = f"{GROUP}/trainer-config"
"""spec.trainer as JSON on the pod; the downward API turns it into the trainer's config file."""

ANNOTATION_OFF: Final = f"{GROUP}/protections-off"
"""On the operator's Deployment: protections against users' jobs that its chart has switched off, one a line."""
ANNOTATION_POD_SETS: Final = f"{GROUP}/pod-sets"
"""On a Workload: a digest of its requests, which differs if the Workload is from an earlier spec."""

TOKEN_HEADER: Final = "X-Tfgpu-Authorization"  # noqa: S105 (its name)
"""The caller's token for the operator's page: the API server's proxy keeps `Authorization` for itself."""
PAGE_SERVICE: Final = "tfgpu-system/tfgpu-tfgpujob-ui"
"""Namespace and name of the page's Service if the chart is installed as docs/install.md says."""
GONE: Final = "gone"
"""Beside the metadata of a job that is read from the history: when it was last seen. An API server drops such a key."""

# Names inside a pod.
CONTAINER: Final = "tensorflow"
OWN_PROGRAMS_GROWTH: Final = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""The variable that makes TensorFlow allocate GPU memory as it needs it."""
GATE_CONTAINER: Final = "tfgpu-peer-gate"
GATE_GAVE_UP: Final = 3
"""Exit code of the wait-for-peers init container when its peers did not resolve in time."""
PORT_NAME: Final = "tensorflow"
PORT: Final = 2222
SUPERVISE: Final = "tfgpu-supervise"
"""Prefix of the command of a user's own program whose pods recover in place. The trainer's package has it."""
RECOVERY_PORT: Final = 8081
"""Port at which the chief's or first worker's pod coordinates a restart in place."""
MAX_NAME_LENGTH: Final = 48
MAX_LABEL_LENGTH: Final = 63
"""The longest DNS label, as the name of a namespace may be."""
NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME: Final = re.compile(NAME_PATTERN)
CONFIG_VOLUME: Final = "tfgpu-config"
CONFIG_DIR: Final = "/etc/tfgpu"
CONFIG_FILE: Final = "trainer.json"
OUTPUT_VOLUME: Final = "tfgpu-output"
CODE_VOLUME: Final = "tfgpu-code"
FETCH_CONTAINER: Final = "tfgpu-fetch-code"
"""The init container that fetches code from git."""
GIT_VOLUME: Final = "tfgpu-git"
GIT_DIR: Final = "/etc/tfgpu-git"
"""Credentials of the init container that fetches code."""
MODELS_VOLUME: Final = "tfgpu-models"
MODELS_DIR: Final = "/models"
GPU_CLAIM: Final = "tfgpu-gpu"
"""The resource claim of spec.gpu.claim, in a pod."""
NON_ROOT_USER: Final = 65532
"""The user of both images."""
SHM_VOLUME: Final = "tfgpu-shm"


class Role(StrEnum):
    """A replica type: the key of spec.replicaSpecs, and TensorFlow's task type."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"


ROLES: Final = tuple(Role)
"""In their order. Iterating over an enumeration is slower: it costs a call for each member."""


class Phase(StrEnum):
    """status.phase: one word for people; programs read the conditions."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(StrEnum):
    """status.conditions[].type."""

    ACCEPTED = "Accepted"
    CREATED = "Created"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    STALLED = "Stalled"
    DEGRADED = "Degraded"
    GPUS_IDLE = "GPUsIdle"
    QUARANTINED = "Quarantined"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    FINISHED = "Finished"


CONDITIONS: Final = tuple(Condition)
"""In the order in which a status has them."""


class Reason(StrEnum):
    """status.conditions[].reason and event reasons."""

    # Accepted
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    NAME_TAKEN = "NameTaken"
    IMMUTABLE_FIELD_CHANGED = "ImmutableFieldChanged"
    # Created
    ALL_CREATED = "AllCreated"
    WAITING_FOR_OLD_PODS = "WaitingForOldPods"
    QUOTA_EXCEEDED = "QuotaExceeded"
    FORBIDDEN = "Forbidden"
    TEMPLATE_REFUSED = "TemplateRefused"
    START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"
    SCHEDULE_TIMEOUT_EXCEEDED = "ScheduleTimeoutExceeded"
    # Running
    STARTING = "Starting"
    ALL_READY = "AllReady"
    REPLICA_NOT_READY = "ReplicaNotReady"
    STOPPED = "Stopped"
    REPLICA_RESTARTING = "ReplicaRestarting"
    RESIZING = "Resizing"
    SHRUNK = "Shrunk"
    # Restarting
    DISRUPTED = "Disrupted"
    RETRYABLE_FAILURE = "RetryableFailure"
    RESUMED = "Resumed"
    RESIZED = "Resized"
    # Stalled, Degraded
    NO_PROGRESS = "NoProgress"
    STRAGGLER = "Straggler"
    PROGRESSING = "Progressing"
    # GPUsIdle, Suspended
    NOT_USED = "NotUsed"
    USED = "Used"
    # Quarantined
    BUDGET_EXCEEDED = "BudgetExceeded"
    WITHIN_BUDGET = "WithinBudget"
    # Suspended
    SUSPENDED = "Suspended"
    WAITING_FOR_ADMISSION = "WaitingForAdmission"
    ADMITTED = "Admitted"
    # Succeeded, Failed, Finished
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CHIEF_SUCCEEDED = "ChiefSucceeded"
    WORKERS_SUCCEEDED = "WorkersSucceeded"
    REPLICA_FAILED = "ReplicaFailed"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    DISRUPTION_LIMIT_EXCEEDED = "DisruptionLimitExceeded"
    DEADLINE_EXCEEDED = "DeadlineExceeded"


def port_name(number: int) -> str:
    """The name of a task's port in its pod: the ports of further processes are numbered."""
    return PORT_NAME if number == PORT else f"{PORT_NAME}-{number - PORT}"


def host(job: str, role: Role, index: int, namespace: str) -> str:
    """A pod's name in the cluster. It is stable over restarts; only the pod behind it changes."""
    return f"{job}-{role}-{index}.{job}.{namespace}.svc"
