"""The input of every policy of an attempt: one observed job, and the status under construction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from tfgpujob.api import JobSpec
from tfgpujob.core.membership.changes import of_next_attempt
from tfgpujob.core.membership.deadlines import membership_deadlines
from tfgpujob.core.membership.seen import Seen
from tfgpujob.core.observed.admission import Admission
from tfgpujob.core.observed.observed_pods import ObservedPods, observe_pods
from tfgpujob.core.observed.plan import Plan, resolve
from tfgpujob.core.observed.restart_records import to_status
from tfgpujob.core.observed.snapshot import Config, Delete, Event, Kind, Object, Outcome, Pod, Snapshot
from tfgpujob.core.policies.deadlines import attempt_deadlines
from tfgpujob.core.status import digests, progress, replica_statuses
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.names import Role


class ReconcileContext(Seen):
    """What policies do with it besides."""

    __slots__ = ()

    @property
    def job(self) -> Object:
        return self.snapshot.job

    def resolve(self, admission: Admission | None = None) -> Plan:
        """The plan of an attempt that begins now."""
        return resolve(self.spec, self.config, admission, image_volumes=self.snapshot.image_volumes)

    def next_plan(self, *, keeps_limit: bool) -> Plan:
        """The plan of the attempt that follows this one."""
        plan = self.resolve(self.plan.admission)
        return replace(plan, members=of_next_attempt(self, plan.members, keeps_limit=keeps_limit))

    def requeue(self, *times: datetime | None) -> Outcome:
        """Write the status, and requeue the job at the first of `times` and of the current deadlines."""
        due = (
            at
            for at in (
                *times,
                *attempt_deadlines(self.builder, self.spec.run_policy, self.observed),
                *membership_deadlines(self),
            )
            if at is not None and at > self.now
        )
        return Outcome(status=self.builder.build(), requeue_at=min(due, default=None))


def new_context(snapshot: Snapshot, builder: StatusBuilder, spec: JobSpec, config: Config) -> ReconcileContext:
    """The context of the attempt in `builder`, with updated counts and progress."""
    observed = observe_pods(snapshot, builder.fields)
    plan = replace(Plan.from_status(builder.fields["plan"]), members=observed.members)
    replica_statuses.update(builder, observed)
    _clear_backoff_of_restarted(builder, observed)
    progress.update(builder, observed, snapshot.reports)
    digests.update(builder, observed)
    return ReconcileContext(snapshot, builder, spec, config, plan, observed)


def _clear_backoff_of_restarted(builder: StatusBuilder, observed: ObservedPods) -> None:
    """A replica whose new pod is there has restarted: the persisted intent to restart it is fulfilled."""
    there = {r: replace(record, backoff_until="") for r, record in observed.records.items() if r in observed.pods}
    builder.put("restartRecords", to_status({**observed.records, **there}))


def own_pods(snapshot: Snapshot, attempt: int) -> tuple[Pod, ...]:
    """This job's pods up to `attempt`. Pods of a later one show that the cached job is stale, and are not deleted."""
    uid = snapshot.job["metadata"]["uid"]
    return tuple(pod for pod in snapshot.pods if pod.owner_uid == uid and pod.attempt <= attempt)


def delete_old_pods(snapshot: Snapshot, attempt: int) -> tuple[Delete, ...]:
    """Deletes of this job's pods, and of its pod groups, of attempts before `attempt`. Parameter servers and all others
    are kept while their chief stops, because it reads what it saves from them."""
    old = own_pods(snapshot, attempt - 1)
    has_servers = any(pod.role == Role.PS for pod in old)
    saves = any(pod.role == Role.CHIEF and pod.deleting for pod in old)
    return (*delete_pods(() if has_servers and saves else old), *delete_pod_groups(snapshot, attempt - 1))


def replace_attempt(ctx: ReconcileContext, event: Event, *, requeue_at: datetime | None = None) -> Outcome:
    """The Outcome of a status that has the next attempt: nothing is deleted before that is persisted."""
    status = ctx.builder.build()
    return Outcome(
        status=status,
        intent=status,
        deletes=delete_old_pods(ctx.snapshot, ctx.builder.attempt),
        events=(event,),
        requeue_at=requeue_at or ctx.now,
    )


def delete_pod_groups(snapshot: Snapshot, attempt: int) -> tuple[Delete, ...]:
    """Deletes of this job's pod groups up to `attempt`: a scheduler would reserve capacity for pods that are never
    created.
    """
    uid = snapshot.job["metadata"]["uid"]
    return tuple(
        Delete(kind, group.name, group.uid)
        for kind, group in snapshot.pod_groups.items()
        if group.owner_uid == uid and group.attempt <= attempt and not group.deleting
    )


def delete_pods(pods: Iterable[Pod]) -> tuple[Delete, ...]:
    """Deletes of those that are not terminating already."""
    return tuple(Delete(Kind.POD, pod.name, pod.uid) for pod in pods if not pod.deleting)
