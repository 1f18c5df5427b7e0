"""status.goodput: what all of the job's time was spent on, as seen by its chief (or else worker 0).

Like gpuTime it is updated with other status writes. Each second between metadata.creationTimestamp and `goodput.time`
belongs to one part: before the chief's program runs, by the cluster's records of its pod; while it runs, by the
trainer's progress reports and termination message (`TrainerLedger`); without a pod, by the last status. While a pod is
followed, its whole time is counted again each time, on top of the account before it (`goodput.before`), so a crash, a
conflict or a missed report neither loses nor repeats a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tfgpujob.core.observed.members import chief_among
from tfgpujob.core.observed.metadata import pod_name
from tfgpujob.core.observed.observed_pods import has_ended, has_succeeded
from tfgpujob.core.observed.progress_report import TrainerLedger, parse_ledger
from tfgpujob.core.observed.restart_records import read as read_records
from tfgpujob.core.observed.snapshot import Object, Pod, Snapshot
from tfgpujob.core.status.builder import moment
from tfgpujob.core.status.goodput_account import Account, Span, follows, in_seconds, summed
from tfgpujob.names import Condition, Phase
from tfgpujob_contract.goodput import OF_TRAINER, OTHER, PARTS, SUSPENDED, WAITING

_OF_THE_TRAINER: Final = frozenset(OF_TRAINER)
_OF_THE_TRAINER_ALONE: Final = _OF_THE_TRAINER - {WAITING, OTHER}


def has_last_words(snapshot: Snapshot) -> bool:
    """True if the followed pod has left a last report and is being deleted, or is gone: it must be read now."""
    followed = (p for p in (*snapshot.pods, snapshot.departed) if p is not None and follows(snapshot.job, p.uid))
    pod = next(followed, None)
    return pod is not None and pod.termination is not None and (pod.deleting or pod is snapshot.departed)


def chief_pod(status: Mapping[str, Any], snapshot: Snapshot) -> Pod | None:
    """The job's own pod whose time is the job's, in any attempt."""
    if not status.get("plan"):
        return None
    metadata = snapshot.job["metadata"]
    wanted = pod_name(metadata["name"], *chief_among(status["plan"]["counts"]))
    own = (pod for pod in snapshot.pods if pod.name == wanted and pod.owner_uid == metadata["uid"])
    return next(own, None)


def ledger_of(pod: Pod, snapshot: Snapshot) -> TrainerLedger | None:
    """The trainer's last ledger: from its end, or else from its last report."""
    words = parse_ledger(pod.termination.message) if pod.termination is not None else None
    report = snapshot.reports.get(pod.uid)
    return words or (report.ledger if report is not None else None)


def updated(status: Object, snapshot: Snapshot, now: datetime) -> Object:
    """The status that is about to be written, with goodput up to now, or up to the trainer's last report."""
    old: Mapping[str, Any] = snapshot.job.get("status") or {}
    if _finished(old):
        return status
    account = Account.read(status) or Account({}, _created(snapshot.job, status, now))
    now = max(now.replace(microsecond=0), account.time)
    pod = chief_pod(status, snapshot)
    if account.before is not None and (pod is None or pod.uid != account.pod):
        account = _close_departed(account, snapshot, old, now)
    if pod is not None and pod.uid != account.pod:
        begins = min(max(_moment(pod.created_at) or now, account.time), now)
        account = _without_pod(account, old, begins)
        account = Account(account.parts, begins, account.reached, pod.uid, account.parts, begins)
    if pod is not None and account.before is not None:
        account = _followed(account, pod, ledger_of(pod, snapshot), now, at_the_end=_finished(status))
    if account.before is None:
        account = _without_pod(account, old, now, succeeded=pod is not None and has_succeeded(pod))
    return {**status, "goodput": account.to_status()}


def _close_departed(account: Account, snapshot: Snapshot, old: Mapping[str, Any], now: datetime) -> Account:
    """The account after the followed pod, which is gone: with or without its last report."""
    pod = snapshot.departed
    if pod is not None and pod.uid == account.pod:
        return _followed(account, pod, ledger_of(pod, snapshot), now, at_the_end=True)
    # It ended when the job did, at the latest.
    return _closed_untold(account, min(_stopped_at(old) or now, now))


def _closed_untold(account: Account, until: datetime) -> Account:
    """The account after the followed pod. What it did between its last report and its end is unknown."""
    until = max(until.replace(microsecond=0), account.time)
    account = _added(account, [(OTHER, _milliseconds(account.time, until))], until)
    return Account(account.parts, account.time, account.reached, account.pod)


def _was_told(account: Account, before: Mapping[str, int]) -> bool:
    """True if the trainer of the followed pod has reported its time."""
    return any(account.parts.get(part, 0) > before.get(part, 0) for part in _OF_THE_TRAINER_ALONE)


def _followed(account: Account, pod: Pod, ledger: TrainerLedger | None, now: datetime, *, at_the_end: bool) -> Account:
    """The account of the pod's time, counted again, up to its end, to its last report, or else to now; closed at its
    end.
    """
    assert account.before is not None
    assert account.since is not None
    ended = has_ended(pod)
    until = _ended_at(pod, now) if ended else now
    if ledger is None and _was_told(account, account.before):
        # Its report was lost with it, or with another process of the operator. What is recorded stays.
        return _closed_untold(account, until) if ended or at_the_end else account
    if not ended and not at_the_end and ledger is not None:
        told = datetime.fromtimestamp(ledger.until // 1000, UTC)
        until = min(now, max(told, _moment(pod.program_began) or account.since))
    until = max(until.replace(microsecond=0), account.time)
    reached = account.reached if ledger is None else ledger.reached  # less in another fit() of a script
    spans = _spans(pod, ledger, account.since, until)
    parts = summed(account.before, in_seconds(spans))
    if ended or at_the_end:
        return Account(parts, until, reached, account.pod)
    return Account(parts, until, reached, account.pod, account.before, account.since)


def _spans(pod: Pod, ledger: TrainerLedger | None, since: datetime, until: datetime) -> list[Span]:
    """The pod's time between two times, in parts. Phases that the cluster has not recorded take no time."""
    cursor, spans = since, list[Span]()

    def up_to(part: str, at: datetime | None) -> None:
        nonlocal cursor
        end = until if at is None else min(max(at, cursor), until)
        spans.append((part, _milliseconds(cursor, end)))
        cursor = end

    runs = pod.phase == "Running" or pod.termination is not None
    began = _moment(pod.program_began or (pod.started_at if runs else ""))
    gate_began = _moment(pod.gate_began) or began
    scheduled = _moment(pod.scheduled_at) or _moment(pod.started_at) or gate_began
    up_to("queued", scheduled)
    up_to("pulling", gate_began)
    if pod.gate_began:
        up_to("waiting", _moment(pod.gate_ended) or began)
    up_to("pulling", began)
    return [*spans, *_told(ledger, cursor, _milliseconds(cursor, until))]


def _told(ledger: TrainerLedger | None, since: datetime, length: int) -> list[Span]:
    """What the program did in these milliseconds, by its reports: until its ledger begins, it is starting; after the
    ledger's end it is unknown."""
    if ledger is None:
        return [(OTHER, length)]
    parts = dict.fromkeys(PARTS, 0)
    for name, milliseconds in ledger.parts.items():
        parts[name if name in _OF_THE_TRAINER else OTHER] += milliseconds
    total = sum(parts.values())
    if total <= length:
        starting = min(max(ledger.until - total - int(since.timestamp() * 1000), 0), length - total)
        return [("importing", starting), *parts.items(), (OTHER, length - total - starting)]
    # The clocks of node and operator differ, or the last second is not over yet.
    left, whole = length, total
    spans = []
    for name, milliseconds in parts.items():
        share_of_it = left * milliseconds // whole if whole else 0
        spans.append((name, share_of_it))
        left, whole = left - share_of_it, whole - milliseconds
    return spans


def _without_pod(account: Account, old: Mapping[str, Any], until: datetime, *, succeeded: bool = False) -> Account:
    """The account up to `until`, by the last status, for the time in which no program of the chief runs."""
    spans, since = list[Span](), account.time
    phase, ready = old.get("phase"), _backoff_until(old)
    if phase == Phase.SUSPENDED:
        stopped = min(max(_stopped_at(old) or since, since), until)
        spans += [(OTHER, _milliseconds(since, stopped)), (SUSPENDED, _milliseconds(stopped, until))]
        return _added(account, spans, until)
    if ready is not None and ready > since and phase in (Phase.RESTARTING, Phase.RUNNING):
        spans.append(("backoff", _milliseconds(since, min(ready, until))))
        since = min(ready, until)
    between = "restarting" if phase in (Phase.RESTARTING, Phase.RUNNING) else "queued"
    part = "waiting" if succeeded else between
    return _added(account, [*spans, (part, _milliseconds(since, until))], until)


def _backoff_until(old: Mapping[str, Any]) -> datetime | None:
    """Until when the next attempt, or the chief alone, is not started."""
    found = [_moment(str((old.get("retry") or {}).get("notBefore") or ""))]
    if old.get("plan"):
        record = read_records(old).get(chief_among(old["plan"]["counts"]))
        found.append(_moment(record.backoff_until) if record is not None else None)
    return max((at for at in found if at is not None), default=None)


def _stopped_at(old: Mapping[str, Any]) -> datetime | None:
    """When the status first said that the attempt does not run any more."""
    stops = {Condition.SUSPENDED, Condition.RESTARTING, Condition.FINISHED}
    times = [
        c["lastTransitionTime"] for c in old.get("conditions") or () if c["type"] in stops and c["status"] == "True"
    ]
    return moment(max(times)) if times else None


def _ended_at(pod: Pod, now: datetime) -> datetime:
    """When its container ended; if that is not recorded, when the cluster recorded the pod's end, or now."""
    ended = pod.termination.finished_at if pod.termination is not None else ""
    return min(_moment(ended or pod.ended_at) or now, now)


def _added(account: Account, spans: Iterable[Span], until: datetime) -> Account:
    parts = summed(account.parts, in_seconds(spans))
    return Account(parts, max(until, account.time), account.reached, account.pod, account.before, account.since)


def _created(job: Object, status: Mapping[str, Any], now: datetime) -> datetime:
    created = _moment(str(job["metadata"].get("creationTimestamp") or "")) or _moment(
        str(status.get("startTime") or "")
    )
    return (created or now).replace(microsecond=0)


def _finished(status: Mapping[str, Any]) -> bool:
    return any(c["type"] == Condition.FINISHED and c["status"] == "True" for c in status.get("conditions") or ())


def _moment(text: str) -> datetime | None:
    return moment(text) if text else None


def _milliseconds(since: datetime, until: datetime) -> int:
    return int((until - since).total_seconds()) * 1000
