"""Making an attempt complete: creating what it lacks, once nothing stands in the way."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from tfgpujob import names
from tfgpujob.core.observed.observed_pods import View
from tfgpujob.core.observed.ownership import Ownership, service_ownership
from tfgpujob.core.observed.plan import Plan, ReplicaId
from tfgpujob.core.observed.snapshot import Create, Event, Kind, Outcome, Snapshot
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.core.pods.service import build_service
from tfgpujob.core.policies import backoff, start
from tfgpujob.core.policies.acceptance import accept
from tfgpujob.core.policies.context import Case, old_pods
from tfgpujob.core.policies.deadlines import starts_late
from tfgpujob.core.policies.start import Problem
from tfgpujob.core.status.builder import Draft, moment, timestamp
from tfgpujob.names import Condition, Phase, Reason, Role
from tfgpujob.units import counted


def complete(case: Case, *, licensed: bool) -> Outcome:
    """Creates what the attempt lacks. `licensed`: the status in the cluster names this attempt already."""
    draft = case.draft
    waits_until = start.not_before(draft)
    waits = (waits_until is not None and case.now < waits_until) or (licensed and start.waits_for_edit(draft))
    held = start.refused_last(draft) if waits else frozenset()
    if waits and (not draft.is_true(Condition.CREATED) or case.job["metadata"]["name"] in held):
        return _wait(case, waits_until, licensed=licensed)
    taken = _taken_by_others(case)
    if taken is not None:
        if draft.is_true(Condition.CREATED):
            return _go_on_without(case, taken)
        return release(case.snapshot, draft, case.view, taken, case.plan)
    blocker = _in_the_way(case)
    if blocker:
        return _wait_for(case, blocker, licensed=licensed)
    return _create_beside(case, waits_until, held) if held else _create(case, licensed=licensed)


def release(snapshot: Snapshot, draft: Draft, view: View, found: Problem, next_plan: Plan) -> Outcome:
    """This start is over: its pods go, and the next one is due later."""
    known = draft.reason(found.condition) == found.reason
    start.release(draft, next_plan, found, created_some=bool(view.pods))
    status = draft.done()
    return Outcome(
        status,
        intent=status,
        deletes=old_pods(snapshot, draft.attempt),
        events=() if known else (Event("Warning", str(found.reason), found.message),),
        requeue_at=start.not_before(draft),
    )


def _go_on_without(case: Case, found: Problem) -> Outcome:
    """A complete attempt is never given up because something else can't be created beside it."""
    known = case.draft.reason(found.condition) == found.reason
    start.go_on_without(case.draft, found)
    events = () if known else (Event("Warning", str(found.reason), found.message),)
    return replace(case.waiting(start.not_before(case.draft)), events=events)


def all_created(attempt: int) -> str:
    return f"All pods of attempt {attempt} are created."


def has_service(case: Case) -> bool:
    service = case.snapshot.service
    return service is not None and service_ownership(service, case.job["metadata"]["uid"]) is Ownership.OURS


def _taken_by_others(case: Case) -> Problem | None:
    """What nobody is created beside. In a complete attempt that is the service alone: a pod is refused by itself."""
    service = case.snapshot.service
    if service and service_ownership(service, case.job["metadata"]["uid"]) is Ownership.FOREIGN:
        return start.name_taken(Kind.SERVICE, service.name)
    required = {case.view.name(replica) for replica in case.plan.required()}
    taken = [pod.name for pod in case.view.foreign if pod.name in required]
    return start.name_taken(Kind.POD, taken[0]) if taken and not case.draft.is_true(Condition.CREATED) else None


def _in_the_way(case: Case) -> str:
    """The name of an old object that must go first; empty when there is none."""
    if case.snapshot.service is not None and not has_service(case):
        return f"Service {case.snapshot.service.name}"
    return f"Pod {case.view.in_the_way[0].name}" if case.view.in_the_way else ""


def _wait_for(case: Case, blocker: str, *, licensed: bool) -> Outcome:
    text = f"{blocker} of an earlier start is still going; nothing new is created beside it."
    case.draft.set(Condition.CREATED, False, Reason.WAITING_FOR_OLD_PODS, text)
    return _wait(case, None, licensed=licensed)


def _wait(case: Case, until: datetime | None, *, licensed: bool) -> Outcome:
    waiting = case.waiting(until)
    deletes = old_pods(case.snapshot, case.draft.attempt)
    return replace(waiting, intent=None if licensed else waiting.status, deletes=deletes)


def _create_beside(case: Case, waits_until: datetime | None, held: frozenset[str]) -> Outcome:
    """Others start again beside those that were refused; what is said of these stands."""
    creates = tuple(create for create in _missing_objects(case) if create.name not in held)
    return replace(case.waiting(waits_until, *_due_again(case)), creates=creates)


def _create(case: Case, *, licensed: bool) -> Outcome:
    draft = case.draft
    creates = _missing_objects(case)
    if not creates:
        return case.waiting(*_due_again(case))
    if not draft.is_true(Condition.RUNNING):
        draft.set(Condition.RUNNING, False, *start.what_is_missing(case.view))
    late = not case.view.pods and starts_late(draft, case.spec.run_policy)
    if late:
        draft.put("attemptStartTime", timestamp(draft.now))
    intent = draft.done() if late or not licensed else None
    # Who is refused while the others run stops nobody who can start again.
    refused_last = "" if draft.is_true(Condition.CREATED) else (draft.fields.get("retry") or {}).get("object", "")
    # What follows is true once the creates have succeeded; `conclude` sees to it that it isn't written otherwise.
    accept(draft, case.spec)
    draft.set(Condition.CREATED, True, Reason.ALL_CREATED, all_created(draft.attempt))
    start.all_is_created(draft)
    if draft.fields.get("phase") == Phase.PENDING:
        draft.set_phase(Phase.STARTING)
    return Outcome(
        status=draft.done(),
        intent=intent,
        creates=creates,
        first=refused_last if any(create.name == refused_last for create in creates) else "",
        events=(Event("Normal", "Created", f"Attempt {draft.attempt}: created {_in_words(creates)}."),),
        requeue_at=case.waiting(*_due_again(case)).requeue_at,
    )


def _due_again(case: Case) -> tuple[datetime, ...]:
    return tuple(moment(case.view.records[replica].backoff_until) for replica in _not_yet(case))


def _not_yet(case: Case) -> tuple[ReplicaId, ...]:
    """Replicas that start again when their old pod has gone and the time has come."""
    view = case.view
    return tuple(
        r
        for r in view.missing()
        if view.starts_again(r)
        and (r in view.superseded or not backoff.over(moment(view.records[r].backoff_until), case.now))
    )


def _replica(case: Case, replica: ReplicaId) -> Replica:
    return Replica(*replica, case.draft.attempt, case.view.restart(replica))


def _missing_objects(case: Case) -> tuple[Create, ...]:
    not_yet = set(_not_yet(case))
    pods = tuple(
        Create(Kind.POD, build_pod(case.job, case.spec, case.plan, _replica(case, replica)))
        for replica in case.view.missing()
        if replica not in not_yet
    )
    return pods if has_service(case) else (Create(Kind.SERVICE, build_service(case.job)), *pods)


def is_evaluator(create: Create) -> bool:
    labels = create.body["metadata"].get("labels") or {}
    return bool(labels.get(names.LABEL_REPLICA_TYPE) == Role.EVALUATOR)


def _in_words(creates: tuple[Create, ...]) -> str:
    pods = sum(create.kind is Kind.POD for create in creates)
    service = " and the service" if pods != len(creates) else ""
    return f"{counted(pods, 'pod')}{service}"
