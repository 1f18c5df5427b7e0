"""Environment variables of a pod."""

from __future__ import annotations

from enum import StrEnum


class Variable(StrEnum):
    """Set by the operator on the training container, so no template sets one. TF_CONFIG is set beside them."""

    STRATEGY = "TFGPU_STRATEGY"
    JOB = "TFGPU_JOB"
    NAMESPACE = "TFGPU_NAMESPACE"
    JOB_UID = "TFGPU_JOB_UID"
    REPLICA_TYPE = "TFGPU_REPLICA_TYPE"
    REPLICA_INDEX = "TFGPU_REPLICA_INDEX"
    REPLICAS = "TFGPU_REPLICAS"
    """How many workers predict."""
    SHARED_PARTS = "TFGPU_SHARED_PARTS"
    """On workers that predict, join and leave: each takes the next part that no other has."""
    ATTEMPT = "TFGPU_ATTEMPT"
    REPLICA_RESTART = "TFGPU_REPLICA_RESTART"
    GPUS = "TFGPU_GPUS"
    PROCESSES_PER_GPU = "TFGPU_PROCESSES_PER_GPU"
    GPU_MEMORY_GROWTH = "TFGPU_GPU_MEMORY_GROWTH"
    GPU_MEMORY_LIMIT_MIB = "TFGPU_GPU_MEMORY_LIMIT_MIB"
    START_DEADLINE_SECONDS = "TFGPU_START_DEADLINE_SECONDS"
    """For the bundled trainer: how long it waits for its peers to start."""
    PROGRESS_TOKEN = "TFGPU_PROGRESS_TOKEN"  # noqa: S105 (its name)
    """The token that GET /progress requires."""
    REACHED_STEP = "TFGPU_REACHED_STEP"
    """The step that had been reached: steps up to it are repeated."""
    WORKERS_MIN = "TFGPU_WORKERS_MIN"
    """On a chief whose workers join and leave: with how many it starts."""
    RECOVERY = "TFGPU_RECOVERY"
    """How processes restart: InPlace or Pods."""
    RECOVERY_BUDGET = "TFGPU_RECOVERY_BUDGET"
    """Restarts in place that are left in this attempt."""
    RECOVERY_LEADER = "TFGPU_RECOVERY_LEADER"
    """Host and port of the pod that coordinates a restart in place: the chief's or first worker's."""
    RECOVERY_TOKEN = "TFGPU_RECOVERY_TOKEN"  # noqa: S105 (its name)
    """A token that only the pods of one attempt share."""
    RECOVERY_RESIZE = "TFGPU_RECOVERY_RESIZE"
    """A gang's leader accepts another number of workers."""
    RECOVERY_LEAST = "TFGPU_RECOVERY_LEAST"
    """The fewest workers that continue when others have left."""
    RECOVERY_SPARES = "TFGPU_RECOVERY_SPARES"
    """How many of the worker pods are spares."""
    RECOVERY_JOINS = "TFGPU_RECOVERY_JOINS"
    """On a worker that joins a gang which is training."""


class GitVariable(StrEnum):
    """Set by the operator on the init container that fetches code."""

    URL = "TFGPU_GIT_URL"
    COMMIT = "TFGPU_GIT_COMMIT"
    PATH = "TFGPU_GIT_PATH"
    CREDENTIALS = "TFGPU_GIT_CREDENTIALS"
    """Folder with `username` and `password`, as in a Secret of type kubernetes.io/basic-auth, and `ca.crt`, if any."""
    TARGET = "TFGPU_GIT_TARGET"


class LocalVariable(StrEnum):
    """Set by a local run, for what a pod has a mount or a port of its own."""

    CODE_DIR = "TFGPU_CODE_DIR"
    FILES_DIR = "TFGPU_FILES_DIR"
    """Where a replica but the first runs a script, in a copy of its folder."""
    PROGRESS_PORT = "TFGPU_PROGRESS_PORT"
    REQUIREMENTS_DIR = "TFGPU_REQUIREMENTS_DIR"
    TERMINATION_LOG = "TFGPU_TERMINATION_LOG"
