"""The API: the fields of a TFGPUJob, and what is wrong with a spec that is not valid.

The models are the only source: the CRD (crds/), its reference and these checks are made from them.
"""

from tfgpujob.api.devices import DeviceClaim
from tfgpujob.api.invalid import Invalid
from tfgpujob.api.parse import parse_job, read_run_policy
from tfgpujob.api.rules.gpu import gpus, plain_count, processes, replicas_in_sync
from tfgpujob.api.run_policy import (
    CleanPodPolicy,
    Gang,
    Recovery,
    RestartScope,
    RunPolicy,
    SchedulingPolicy,
    StallPolicy,
    StartPolicy,
    TopologyMode,
    VoluntaryDisruption,
)
from tfgpujob.api.spec import GpuMemory, GpuSpec, JobSpec, ReplicaSpec, ReplicaSpecs, RestartPolicy, SuccessPolicy
from tfgpujob.api.status import JobStatus

__all__ = [
    "CleanPodPolicy",
    "DeviceClaim",
    "Gang",
    "GpuMemory",
    "GpuSpec",
    "Invalid",
    "JobSpec",
    "JobStatus",
    "Recovery",
    "ReplicaSpec",
    "ReplicaSpecs",
    "RestartPolicy",
    "RestartScope",
    "RunPolicy",
    "SchedulingPolicy",
    "StallPolicy",
    "StartPolicy",
    "SuccessPolicy",
    "TopologyMode",
    "VoluntaryDisruption",
    "gpus",
    "parse_job",
    "plain_count",
    "processes",
    "read_run_policy",
    "replicas_in_sync",
]
