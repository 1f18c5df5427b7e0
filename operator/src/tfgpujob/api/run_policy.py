"""spec.runPolicy: how a job starts, restarts, ends, and is scheduled."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tfgpujob.api.base import (
    MAX_INT32,
    Controller,
    Model,
    NotNegative,
    Positive,
    Positive64,
    Quantity,
    Text,
)
from tfgpujob_contract.pod import MAX_REPLICAS


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


class SchedulingPolicy(Model):
    """spec.runPolicy.schedulingPolicy."""

    gang: Annotated[Gang, Field(strict=False)] = Gang.AUTO
    """The gang scheduler, which places all pods of an attempt or none, by a pod group that the operator creates.
    Volcano; SchedulerPlugins: the coscheduling plugin of kube-scheduler; Native: kube-scheduler's own, from Kubernetes
    1.36 on. Auto: the one that the operator is configured for, if any, unless a template sets another scheduler or its
    own pod group. None: none. This field and the next three take effect with the next attempt."""
    min_available: Positive | None = None
    """Pods that must be scheduled together. Absent: all but the evaluator. At most the pods of the job."""
    queue: Text | None = None
    """The Volcano queue of the job."""
    min_resources: Annotated[dict[str, Quantity], Field(max_length=64)] | None = None
    """Resources that must be free before Volcano or SchedulerPlugins places a pod. Absent: they consider only the
    pods."""
    priority_class: Text | None = None
    """PriorityClass of the pods, from the next created pod on; a template's priorityClassName takes precedence. The pod
    group has it too."""
    schedule_timeout_seconds: Positive | None = None
    """Seconds in which all required pods must be scheduled. After that all are deleted, and startPolicy applies, as
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
    """Label of nodes, such as topology.kubernetes.io/zone or that of a rack. All pods of an attempt but the evaluator
    are placed on nodes with the same value, by pod affinity in addition to the template's own affinity. Takes effect
    with the next created pod."""
    topology_mode: Annotated[TopologyMode, Field(strict=False)] | None = None
    """Preferred, also if absent: where possible. Required: a pod that does not fit waits, and the start is given up at
    its deadline."""


class ElasticPolicy(Model):
    """spec.runPolicy.elasticPolicy."""

    shrink_after_seconds: Positive
    """Seconds that a worker may wait for a node when the job starts, restarts or grows. After that the job continues
    with the scheduled workers, if they are at least minReplicas."""
    grow_after_seconds: Positive | None = None
    """Seconds after which a job that trains with fewer workers than replicas looks for capacity, by a pending worker
    pod. This is also the least time between two resizes. Only with recovery InPlace. Absent: all workers are tried
    again only when the job is started again."""


class RunPolicy(Model):
    """spec.runPolicy. Fields that mean the same as in TFJob have the same names."""

    clean_pod_policy: Annotated[CleanPodPolicy, Field(strict=False)] = CleanPodPolicy.AUTO
    """Which pods are deleted when the job has finished. Auto: ps and evaluator pods and all pods that still run, so
    that GPUs are free, while finished chiefs and workers stay for their logs. Running: all pods that still run. A pod
    runs while any of its containers does, including a sidecar that never ends. All: all. None: none, so that parameter
    servers keep their GPUs until the job is deleted; only pods that have nothing to do any more are still deleted:
    those of a job that could not be started, and those that waited for a lost worker of a failed job."""
    ttl_seconds_after_finished: NotNegative | None = None
    """Delete the job and its pods this many seconds after it finished. Absent: keep it."""
    active_deadline_seconds: Positive64 | None = None
    """Seconds that the job may be active, restarts included, before it fails. The time starts again after a suspension.
    Absent: no limit."""
    start_deadline_seconds: Positive = 1800
    """Seconds in which all replicas must become ready. After that all are deleted, and startPolicy applies."""
    start_policy: Annotated[StartPolicy, Field(strict=False)] = StartPolicy.RETRY
    """What happens when not all replicas could be started. Retry: delete the pods and try again later. Fail: the job
    fails."""
    backoff_limit: NotNegative = 6
    """Restarts before the job fails. A failure of the whole gang counts once, however many pods failed with it, and so
    does each replica that restarts alone; evictions, lost nodes and the evaluator don't count."""
    restart_scope: Annotated[RestartScope, Field(strict=False)] = RestartScope.AUTO
    """What restarts when a replica fails. Auto: what the strategy needs: under ParameterServer the failed replica (with
    a ps also the chief), under trainer.mode predict the failed replica, otherwise the gang. Replica: under Custom the
    failed replica, elsewhere as Auto. Gang: all replicas. A failed evaluator always restarts alone."""
    force_delete_after_seconds: NotNegative = 60
    """Seconds after a deleted pod's grace period until it is deleted by force, if its node is gone."""
    stall_seconds: Positive | None = None
    """Seconds without a step, evaluation batch or save of the bundled trainer until the condition Stalled is True.
    Start-up and the first step are never a stall. Absent: half of spec.trainer.watchdog.stepSeconds. Without
    spec.trainer, setting it declares that the program reports its steps by tfgpujob_trainer; status.progress then has
    them too."""
    stall_policy: Annotated[StallPolicy, Field(strict=False)] = StallPolicy.REPORT
    """What happens to a job that is Stalled. Report: the condition and an event; the trainer's own watchdog ends the
    process later. Restart: the job restarts from its last checkpoint, which backoffLimit counts."""
    suspend_idle_seconds: Annotated[int, Field(ge=60, le=MAX_INT32)] | None = None
    """Seconds after which a job whose GPUs do nothing is suspended at a checkpoint, until its spec is edited or `tfgpu
    resume`. Only if the bundled trainer reports the use of all GPUs of its chief and workers while it trains, and no
    evaluator has one. Absent: such a job keeps its GPUs."""
    voluntary_disruption: Annotated[VoluntaryDisruption, Field(strict=False)] = VoluntaryDisruption.AVOID
    """Whether autoscalers may remove nodes with pods of this job to save cost. Avoid: the pods have the annotations
    that keep the cluster autoscaler and Karpenter from it, unless the template sets these. They don't prevent a drain,
    a preemption or a lost node. Allow: no annotations. Takes effect with the next created pod."""
    recovery: Annotated[Recovery, Field(strict=False)] = Recovery.PODS
    """How the job recovers from a failure that is worth a restart. InPlace: the training processes are started again in
    their pods within seconds: all processes of a gang, or only the failed one of workers that predict, or under
    ParameterServer the failed one, and the chief's after a parameter server. backoffLimit counts it. A second failure
    without a step in between deletes the pods. A lost pod of a MultiWorkerMirrored job is created again alone, the
    chief's too, and joins the others, which keep their pods. Without spec.trainer, setting it declares that the program
    supports this: tfgpu-supervise, of the package tfgpujob-trainer in its image, runs the command of the template,
    under OneDevice, Mirrored and MultiWorkerMirrored. Pods: the pods are deleted and created again, as always with
    restartPolicy Never. Takes effect with the next created pod."""
    elastic_policy: ElasticPolicy | None = None
    """When a job with minReplicas or maxReplicas trains with fewer workers than replicas, for lack of capacity. Not
    under Kueue nor with a pod group, which place all pods or none. Absent: it waits until all are scheduled."""
    spares: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Additional worker pods that have started and wait, with their GPUs. When a worker's pod is deleted, evicted or on
    a lost node, a spare replaces it within seconds, and the pod that is created for it becomes the spare. Only under
    MultiWorkerMirrored with spec.trainer and recovery InPlace, not with minReplicas or maxReplicas; without effect
    under Kueue or with a pod group. Takes effect with the next attempt. Absent: none."""
    suspend: bool = False
    """Stop all pods and keep the job. When it is set to false again, training resumes from the last checkpoint."""
    managed_by: Controller | None = None
    """The same as spec.managedBy, where a TFJob has it. MultiKueue reads spec.managedBy alone."""
    scheduling_policy: SchedulingPolicy | None = None
    """How the pods are scheduled: as a gang, in which queue, with what priority, in what time. Without it, too, a start
    is all or nothing: see startDeadlineSeconds."""
    failure_log_lines: Annotated[int, Field(ge=0, le=100)] = 20
    """Last log lines of a failed replica that status.lastFailure keeps, up to 4,096 bytes. 0: none."""

    @property
    def schedule_timeout_seconds(self) -> int | None:
        """schedulingPolicy.scheduleTimeoutSeconds; None: only startDeadlineSeconds."""
        return self.scheduling_policy.schedule_timeout_seconds if self.scheduling_policy is not None else None
