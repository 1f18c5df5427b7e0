"""Every label, annotation, condition type, reason and fixed name, in one place.

What other people's tools match on (labels, condition types, reasons, container and port names) is API:
it is added to, never renamed.
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
"""The value of spec.managedBy that leaves it to Kueue in which cluster the job runs."""
FIELD_OWNER: Final = "tfgpu-operator"

# Labels of pods and services.
LABEL_JOB_NAME: Final = f"{GROUP}/job-name"
LABEL_REPLICA_TYPE: Final = f"{GROUP}/replica-type"
LABEL_REPLICA_INDEX: Final = f"{GROUP}/replica-index"
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
LABEL_REPLICA_RESTART: Final = f"{GROUP}/replica-restart"
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""On a job: the LocalQueue of Kueue that it waits in."""
LABEL_QUEUE_PRIORITY: Final = "kueue.x-k8s.io/priority-class"
"""On a job: the WorkloadPriorityClass that orders it there; else that of its pods does."""
PREBUILT_WORKLOAD: Final = "kueue.x-k8s.io/prebuilt-workload-name"
"""On a job that MultiKueue has sent into this cluster: its Workload, which came with it. An annotation from Kueue 0.18
on, before that a label."""
LABEL_QUEUE_JOB_UID: Final = "kueue.x-k8s.io/job-uid"
"""On a Workload: its job, which Kueue then names when that job preempts another."""
LABEL_APP_NAME: Final = "app.kubernetes.io/name"
LABEL_APP_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_APP_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"

AVOID_VOLUNTARY_DISRUPTION: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations by which the cluster autoscaler and Karpenter leave a pod where it is."""
ANNOTATION_TRAINER_CONFIG: Final = f"{GROUP}/trainer-config"
"""spec.trainer as JSON on the pod; the downward API turns it into the trainer's config file."""

ANNOTATION_OFF: Final = f"{GROUP}/protections-off"
"""On the operator's Deployment: what its chart has left off of what keeps jobs of strangers apart, one a line."""
ANNOTATION_POD_SETS: Final = f"{GROUP}/pod-sets"
"""On a Workload: a digest of what it asks for, by which one of an earlier spec is told."""

# Names inside a pod.
CONTAINER: Final = "tensorflow"
OWN_PROGRAMS_GROWTH: Final = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""The variable by which TensorFlow itself takes GPU memory as it needs it."""
GATE_CONTAINER: Final = "tfgpu-peer-gate"
GATE_GAVE_UP: Final = 3
"""Exit code of the wait-for-peers init container when its peers did not resolve in time."""
PORT_NAME: Final = "tensorflow"
PORT: Final = 2222
PROGRESS_PORT: Final = 8080
"""Where the chief, and every other replica of the bundled trainer, answers GET /progress."""
PROGRESS_TOKEN: Final = "TFGPU_PROGRESS_TOKEN"  # noqa: S105 (its name)
"""Environment variable with the token that GET /progress requires, in the header below."""
PROGRESS_TOKEN_HEADER: Final = "X-Tfgpu-Token"  # noqa: S105 (its name)
SUPERVISE: Final = "tfgpu-supervise"
"""In front of the command of a program of one's own whose pods recover in place. The trainer's package has it."""
RECOVERY_RESIZE: Final = "TFGPU_RECOVERY_RESIZE"
"""The environment variable that lets a gang's leader take another number of workers."""
RECOVERY_LEAST: Final = "TFGPU_RECOVERY_LEAST"
"""The environment variable that says how few workers train on when others have left."""
RECOVERY_SPARES: Final = "TFGPU_RECOVERY_SPARES"
"""The environment variable that says how many of the worker pods are spares."""
WORKERS_MIN: Final = "TFGPU_WORKERS_MIN"
"""The environment variable that tells a chief that its workers come and go, and with how few it begins."""
SHARED_PARTS: Final = "TFGPU_SHARED_PARTS"
"""The environment variable of workers that predict, and come and go: each takes the next part that nobody has."""
RECOVERY_JOINS: Final = "TFGPU_RECOVERY_JOINS"
"""The environment variable of a worker that is to join a gang which trains already."""
REACHED_STEP: Final = "TFGPU_REACHED_STEP"
"""The environment variable that tells a trainer which steps it does again."""
RECOVERY_PORT: Final = 8081
"""Where the chief's or first worker's pod takes the others' word on a restart in place."""
RECOVERY_TOKEN: Final = "TFGPU_RECOVERY_TOKEN"  # noqa: S105 (its name)
"""The environment variable that only the pods of one attempt share."""
MAX_NAME_LENGTH: Final = 48
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
"""Where the init container that fetches code finds its credentials."""
CODE_DIR: Final = "/code"
MODELS_VOLUME: Final = "tfgpu-models"
MODELS_DIR: Final = "/models"
GPU_CLAIM: Final = "tfgpu-gpu"
"""The resource claim of spec.gpu.claim, in a pod."""
NON_ROOT_USER: Final = 65532
"""The user of both images."""
SHM_VOLUME: Final = "tfgpu-shm"
SHM_DIR: Final = "/dev/shm"  # noqa: S108 - a mount point inside the pod, where NCCL looks


class Role(StrEnum):
    """A replica type: the key of spec.replicaSpecs, and TensorFlow's task type."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"


ROLES: Final = tuple(Role)
"""In their order. To iterate over an enumeration itself costs a call for each member."""


class Strategy(StrEnum):
    """spec.strategy: which tf.distribute strategy the pods run."""

    ONE_DEVICE = "OneDevice"
    MIRRORED = "Mirrored"
    MULTI_WORKER_MIRRORED = "MultiWorkerMirrored"
    PARAMETER_SERVER = "ParameterServer"
    CUSTOM = "Custom"


class Phase(StrEnum):
    """status.phase: one word for a person; programs read the conditions."""

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
    """The name of a task's port in its pod: those of further processes are numbered."""
    return PORT_NAME if number == PORT else f"{PORT_NAME}-{number - PORT}"
