"""A job in the middle of being judged: what every policy of an attempt is given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from tfgpujob.api import JobSpec
from tfgpujob.core.observed.observed_pods import View, build_view
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.restart_records import to_status
from tfgpujob.core.observed.snapshot import Config, Delete, Kind, Object, Outcome, Pod, Snapshot
from tfgpujob.core.policies.deadlines import clocks
from tfgpujob.core.status import progress
from tfgpujob.core.status.builder import Draft
from tfgpujob.core.status.replica_statuses import ready_text, replica_statuses


@dataclass(frozen=True, slots=True)
class Case:
    snapshot: Snapshot
    draft: Draft
    spec: JobSpec
    config: Config
    plan: Plan
    """The current attempt's, from the status."""
    view: View

    @property
    def now(self) -> datetime:
        return self.draft.now

    @property
    def job(self) -> Object:
        assert self.snapshot.job is not None
        return self.snapshot.job

    def waiting(self, *looks: datetime | None) -> Outcome:
        """Nothing to do but to say how it stands, and to look again when the first clock runs out."""
        due = (
            at
            for at in (*looks, *clocks(self.draft, self.spec.run_policy, self.view))
            if at is not None and at > self.now
        )
        return Outcome(status=self.draft.done(), requeue_at=min(due, default=None))


def open_case(snapshot: Snapshot, draft: Draft, spec: JobSpec, config: Config) -> Case:
    """The case of the attempt that the draft names, its counts brought up to date."""
    plan = Plan.from_status(draft.fields["plan"])
    view = build_view(snapshot, plan, draft.fields)
    draft.put("replicaStatuses", replica_statuses(view))
    draft.put("ready", ready_text(view))
    _note_who_came(draft, view)
    progress.note(draft, view, snapshot.reports)
    return Case(snapshot, draft, spec, config, plan, view)


def _note_who_came(draft: Draft, view: View) -> None:
    """A replica that starts again and has its new pod needs its licence no more."""
    came = {
        replica: replace(record, backoff_until="") for replica, record in view.records.items() if replica in view.pods
    }
    draft.put("restartRecords", to_status({**view.records, **came}))


def own_pods(snapshot: Snapshot, attempt: int) -> tuple[Pod, ...]:
    """This job's pods up to `attempt`: a later one is newer than our view of the job, and not ours to touch."""
    assert snapshot.job is not None
    uid = snapshot.job["metadata"]["uid"]
    return tuple(pod for pod in snapshot.pods if pod.owner_uid == uid and pod.attempt <= attempt)


def old_pods(snapshot: Snapshot, attempt: int) -> tuple[Delete, ...]:
    """Deletes of this job's pods of attempts before `attempt`."""
    return tuple(Delete(Kind.POD, p.name, p.uid) for p in own_pods(snapshot, attempt - 1) if not p.deleting)
