"""spec.runPolicy: how a job starts, restarts, ends, and is scheduled."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tfgpujob.api.base import MAX_REPLICAS, Controller, Model, NotNegative, Positive, Positive64, Quantity, Text


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
    GPUs are free, while finished chiefs and workers stay for their logs. Running: whatever still runs. A pod still runs
    while any of its containers does, be it one that never ends beside a program that has ended. All: all. None:
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

    @property
    def schedule_timeout_seconds(self) -> int | None:
        """Of schedulingPolicy; None: no limit but startDeadlineSeconds."""
        return self.scheduling_policy.schedule_timeout_seconds if self.scheduling_policy is not None else None
