"""The cache of jobs, their pods, services, NetworkPolicies, pod groups and Workloads, indexed by job. Like an
informer's, it is fed by watches, lists and our own writes.

An older resourceVersion never replaces a newer one, and deleted objects stay deleted, so the three sources may arrive
in any order. The cache may be stale, so the core has objects read again before it acts on them (`Outcome.lookups`). A
lost DELETED event is found by resync, which compares `known` with a list.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from tfgpujob import names
from tfgpujob.api.invalid import Invalid
from tfgpujob.core.membership.leader import asks
from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.packed import size_of
from tfgpujob.core.observed.progress_report import Report
from tfgpujob.core.observed.snapshot import (
    POD_GROUPS,
    WORKLOADS,
    Dependent,
    Kind,
    LeaderAnswer,
    Object,
    Pod,
    Snapshot,
    Workload,
)
from tfgpujob.core.observed.trim import (
    texts_in_status,
    texts_of,
    trim_dependent,
    trim_job,
    trim_pod,
    trim_workload,
    with_short_status,
    with_short_texts,
)
from tfgpujob.core.status import goodput_account
from tfgpujob.names import Condition, Role
from tfgpujob.shell.budget import Budget
from tfgpujob.shell.cluster_objects import ClusterObjects
from tfgpujob.shell.namespaces import Namespaces
from tfgpujob.shell.nodes import Nodes
from tfgpujob.shell.troubled import Troubled, place
from tfgpujob_contract.goodput import PARTS

logger = logging.getLogger(__name__)


class Key(NamedTuple):
    """Namespace and name of a job."""

    namespace: str
    name: str


MAX_TOMBSTONES: Final = 8192
"""How many deleted uids are remembered. Only deletions during one list matter."""
_REPLICA: Final = re.compile(f"-(?:{'|'.join(Role)})-(?:0|[1-9][0-9]{{0,2}})")
"""What a pod's name adds to its job's. Others concern no job, though their labels say so: 20,000 took 30 ms of each
reconciliation."""
_SMALL_ANSWER: Final = 1 << 10
_TIMES: Final = 5
"""Memory of what a pod answers, by bytes: a report of 512 workers takes this many times its JSON."""


@dataclass(slots=True)
class _Entry:
    job: Object | None = None
    pods: dict[str, Pod] = field(default_factory=dict)
    dependents: dict[Kind, Dependent] = field(default_factory=dict)
    """The service, the NetworkPolicy, pod groups and the Workload."""
    reports: dict[str, Report] = field(default_factory=dict)
    """By pod uid; only of existing pods."""
    leader_answer: LeaderAnswer | None = None
    departed: Pod | None = None
    """A deleted pod in its last state, as long as the job's status follows it."""

    @property
    def empty(self) -> bool:
        return self.job is None and not self.dependents and not self.pods


class Known(NamedTuple):
    """An object in the store, with its version at that time."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    resource_version: str


class Store:
    """Jobs and their objects, by job. Every change returns the key of the job it concerns, or None."""

    def __init__(self, namespaces: Namespaces | None = None) -> None:
        """`namespaces`: objects in others are dropped; None: all."""
        self.namespaces = namespaces or Namespaces()
        self._entries: dict[Key, _Entry] = {}
        self._pod_jobs: dict[tuple[str, str], str] = {}
        self._tombstones: OrderedDict[str, None] = OrderedDict()
        self.nodes = Nodes()
        self.cluster_objects = ClusterObjects()
        self.unreadable = Troubled()
        self.quarantined = Troubled()
        """Jobs that are quarantined for their cost: memory (`Budget`) or CPU time (`Quarantine`)."""
        self._budget = Budget()
        self._beyond_budget: set[Key] = set()
        """Jobs whose specs are not kept because of the budget."""
        self.deleted: Callable[[Object, Sequence[Pod]], None] = lambda _job, _pods: None
        """Called with the last state of a deleted job, and its pods."""

    def jobs(self) -> list[Key]:
        """Every job of which any object is known."""
        return list(self._entries)

    def count(self) -> dict[Kind, int]:
        entries = self._entries.values()
        return {
            Kind.JOB: sum(entry.job is not None for entry in entries),
            Kind.POD: len(self._pod_jobs),
            Kind.SERVICE: sum(Kind.SERVICE in entry.dependents for entry in entries),
        }

    def count_with(self, condition: Condition) -> int:
        """The number of jobs with this condition True."""
        return sum(entry.job is not None and is_true(entry.job, condition) for entry in self._entries.values())

    def snapshot(self, key: Key) -> Snapshot | None:
        """None: the job is gone, or not in the cache yet."""
        entry = self._entries.get(key)
        if entry is None or entry.job is None:
            return None
        pods = self.pods(key)
        queued = bool(entry.job["metadata"].get("labels"))
        lost = frozenset(pod.node for pod in pods if pod.node in self.nodes.lost)
        return Snapshot(
            job=entry.job,
            quarantined=str(entry.job.get("unreadable", "")) if key in self._beyond_budget else "",
            pods=pods,
            service=entry.dependents.get(Kind.SERVICE),
            network_policy=entry.dependents.get(Kind.NETWORK_POLICY),
            pod_groups={kind: held for kind, held in entry.dependents.items() if kind in POD_GROUPS},
            workload=next((w for kind in WORKLOADS if isinstance(w := entry.dependents.get(kind), Workload)), None),
            cluster_objects=self.cluster_objects.snapshot() if queued else {},
            lost_nodes=lost,
            image_volumes=self.nodes.image_volumes,
            reports=dict(entry.reports),
            leader_answer=entry.leader_answer,
            departed=entry.departed,
        )

    def pods(self, key: Key) -> tuple[Pod, ...]:
        """By name, also of a job that is gone or not in the cache yet."""
        entry = self._entries.get(key)
        return tuple(entry.pods[name] for name in sorted(entry.pods)) if entry is not None else ()

    def seconds_by_part(self) -> dict[str, int]:
        """What the time of all existing jobs was spent on."""
        totals = dict.fromkeys(PARTS, 0)
        for entry in self._entries.values():
            told = ((entry.job or {}).get("status") or {}).get("goodput") or {}
            for part in PARTS:
                totals[part] += int(told.get(part) or 0)
        return totals

    def reported(self, key: Key) -> tuple[Object, Sequence[Report]] | None:
        """The job, and the last report of each pod: a tenth of a snapshot's cost. None: as for a snapshot."""
        entry = self._entries.get(key)
        return (entry.job, [*entry.reports.values()]) if entry is not None and entry.job is not None else None

    def store_report(self, key: Key, pod_uid: str, report: Report, sent: int = 0) -> None:
        """Keep the progress report of this pod, which sent as many bytes, while the pod exists."""
        entry = self._entries.get(key)
        if entry is None or not any(pod.uid == pod_uid for pod in entry.pods.values()):
            return
        if self._fits(key, pod_uid, sent):
            entry.reports[pod_uid] = report
        else:
            entry.reports.pop(pod_uid, None)  # an old one would say that it stands still

    def store_answer(self, key: Key, answer: LeaderAnswer, sent: int = 0) -> bool:
        """Keep the leader's answer of as many bytes. False: it equals the last one, or the job is gone."""
        entry = self._entries.get(key)
        if entry is None or entry.leader_answer == answer:
            return False
        entry.leader_answer = answer if self._fits(key, key.name, sent) else None
        return True

    def _fits(self, key: Key, who: str, sent: int) -> bool:
        """True if there is room for what a pod, or the leader of a job, has answered."""
        size = _TIMES * max(0, sent - _SMALL_ANSWER)
        return self._budget.charge(key.namespace, ("answer", who), size) is None

    def resizing(self) -> list[Key]:
        """Jobs whose leader is polled: their status has a resize in place in progress, or lost workers."""
        return [key for key in self._entries if self.is_resizing(key)]

    def is_resizing(self, key: Key) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.job is not None and asks(entry.job)

    def nodes_named(self) -> frozenset[str]:
        """Nodes that have pods of jobs."""
        return frozenset(pod.node for entry in self._entries.values() for pod in entry.pods.values())

    def jobs_on(self, nodes: Collection[str]) -> list[Key]:
        """Jobs that have a pod on one of these nodes."""
        return [key for key, e in self._entries.items() if nodes and any(p.node in nodes for p in e.pods.values())]

    def jobs_in_queues(self) -> list[Key]:
        """Jobs that have a label of Kueue's."""
        return [key for key, e in self._entries.items() if e.job is not None and e.job["metadata"].get("labels")]

    def put(self, kind: Kind, obj: Object, of: Key | None = None) -> Key | None:
        """Add or update an object as the API server returned it. None when it is not newer than the cached one, is in a
        namespace that is not served, or can't be read: one object must not hide the others.

        `of` is the job of a pod whose label was removed or changed to another job's. A GET by name has just returned
        the pod, so it is neither deleted nor stale.
        """
        if not self.namespaces.all and not self.namespaces.serves(place(obj)[0]):
            return None
        try:
            key = self._put(kind, obj, of)
        except Exception as error:
            logger.exception("object ignored", extra={"kind": kind, "object": "/".join(place(obj))})
            self.unreadable.add(kind, *place(obj), f"{type(error).__name__}: {error!s:.100}")
            return None
        problem = self._problem(kind, key)
        if problem:
            self.unreadable.add(kind, *place(obj), problem)
        elif key is not None:
            self.unreadable.discard(kind, *place(obj))
        return key

    def _problem(self, kind: Kind, key: Key | None) -> str:
        if kind is not Kind.JOB or key is None or key in self._beyond_budget:
            return ""
        job = self._entries[key].job
        return str(job.get("unreadable", "")) if job is not None else ""

    def _put(self, kind: Kind, obj: Object, of: Key | None) -> Key | None:
        metadata = obj["metadata"]
        if of is None and metadata.get("uid", "") in self._tombstones:
            return None
        namespace = metadata["namespace"]
        if kind is Kind.JOB:
            return self._put_job(Key(namespace, metadata["name"]), obj)
        if kind is Kind.POD:
            return self._put_pod(namespace, obj, of)
        trim = trim_workload if kind in WORKLOADS else trim_dependent
        return self._put_dependent(kind, namespace, trim(obj), _job_label(obj))

    def remove(self, kind: Kind, namespace: str, name: str, uid: str) -> Key | None:
        """Remove the object with this uid; another one of that name stays. None when it was not in the cache."""
        self._add_tombstone(uid)
        self.unreadable.discard(kind, namespace, name)
        job_name = self._pod_jobs.get((namespace, name)) if kind is Kind.POD else name
        if job_name is None:
            return None
        key = Key(namespace, job_name)
        entry = self._entries.get(key)
        if entry is None or _uid_of(entry, kind, name) != uid:
            return None
        if kind is Kind.POD:
            pod = entry.pods[name]
            self._forget_pod(namespace, name)
            if entry.job is not None and pod.termination is not None and goodput_account.follows(entry.job, uid):
                entry.departed = self._affordable(namespace, ("departed", job_name), pod)
            return key
        if kind is Kind.JOB:
            if entry.job is not None:
                self.deleted(entry.job, self.pods(key))
            self._forget_job(key, entry)
        else:
            del entry.dependents[kind]
        self._delete_if_empty(key, entry)
        return key

    def drop(self, namespace: str) -> list[Key]:
        """Forget all objects of a namespace, which continues without the operator: what is put later is taken as
        new.
        """
        dropped = [key for key in self._entries if key.namespace == namespace]
        for key in dropped:
            entry = self._entries.pop(key)
            self._forget_job(key, entry)
            for name in entry.pods:
                del self._pod_jobs[namespace, name]
        self._budget.release(namespace)
        self.unreadable.discard_all(namespace)
        return dropped

    def mark_deleting(self, namespace: str, pod_name: str, uid: str) -> None:
        """Note a pod deletion that the API server has accepted, ahead of its watch event."""
        job_name = self._pod_jobs.get((namespace, pod_name))
        if job_name is None:
            return
        pods = self._entries[Key(namespace, job_name)].pods
        if pods[pod_name].uid == uid:
            pods[pod_name] = replace(pods[pod_name], deleting=True)

    def mark_workload_deleting(self, key: Key, kind: Kind, uid: str) -> None:
        """The same for a Workload."""
        entry = self._entries.get(key)
        held = entry.dependents.get(kind) if entry is not None else None
        if entry is not None and held is not None and held.uid == uid:
            entry.dependents[kind] = replace(held, deleting=True)

    def known(self, kind: Kind, namespace: str | None) -> Iterator[Known]:
        """Every object of one kind, of one namespace or of all."""
        for key, entry in self._entries.items():
            if namespace is not None and key.namespace != namespace:
                continue
            if kind is Kind.JOB and entry.job is not None:
                metadata = entry.job["metadata"]
                yield Known(kind, key.namespace, key.name, metadata["uid"], metadata["resourceVersion"])
            elif kind is Kind.POD:
                for pod in entry.pods.values():
                    yield Known(kind, key.namespace, pod.name, pod.uid, pod.resource_version)
            elif held := entry.dependents.get(kind):
                yield Known(kind, key.namespace, held.name, held.uid, held.resource_version)

    def _put_job(self, key: Key, obj: Object) -> Key | None:
        entry = self._entries.get(key)
        held = entry.job if entry is not None else None
        again = held is not None and not _news(held["metadata"], obj["metadata"])
        if again and key not in self._beyond_budget:
            return None
        job = trim_job(obj, held)
        refusal = self._charge_job(key, job)
        if refusal is not None:
            job = with_short_status(job)
            refusal = self._charge_job(key, job)
        if refusal is not None:
            if again:
                return None
            job = trim_job({**job, "unreadable": str(refusal)})
            self._beyond_budget.add(key)
            self.quarantined.add(Kind.JOB, *key, str(refusal))
        else:
            self._within_budget(key)
        entry = self._entry(key)
        entry.job = job
        if entry.departed is not None and not goodput_account.follows(entry.job, entry.departed.uid):
            entry.departed = None
            self._budget.charge(key.namespace, ("departed", key.name), 0)
        return key

    def _charge_job(self, key: Key, job: Object) -> Invalid | None:
        return self._budget.charge(key.namespace, (Kind.JOB, key.name), size_of(job) + texts_in_status(job))

    def _forget_job(self, key: Key, entry: _Entry) -> None:
        self._budget.charge(key.namespace, (Kind.JOB, key.name), 0)
        self._within_budget(key)
        entry.job = None

    def _within_budget(self, key: Key) -> None:
        if key in self._beyond_budget:
            self._beyond_budget.discard(key)
            self.quarantined.discard(Kind.JOB, *key)

    def _put_pod(self, namespace: str, obj: Object, of: Key | None) -> Key | None:
        name, uid = obj["metadata"]["name"], obj["metadata"].get("uid", "")
        before = self._pod_jobs.get((namespace, name))
        held = self._entries[Key(namespace, before)].pods[name] if before is not None else None
        moved = of is not None and of.name != before
        # Compared before the trim, which costs more: half of all events repeat our own writes.
        if held and not moved and not _newer(held.resource_version, obj["metadata"].get("resourceVersion", "")):
            return None
        same = held if held is not None and held.uid == uid else None
        pod = trim_pod(obj, same)
        if of is not None:
            pod = replace(pod, job_name=of.name)
        if same is not None and same.deleting and not pod.deleting:
            # A deletion can't be undone: this version is older.
            pod = replace(pod, deleting=True)
        if before is not None and before != pod.job_name:
            self._forget_pod(namespace, name)
        key = Key(namespace, pod.job_name)
        if not pod.job_name or not _REPLICA.fullmatch(pod.name.removeprefix(pod.job_name)):
            return None
        entry = self._entry(key)
        pod = self._affordable(namespace, (Kind.POD, name), pod)
        if pod.name in entry.pods and entry.pods[pod.name].uid != pod.uid:
            self._forget_report(key, entry.pods[pod.name].uid)
        entry.pods[pod.name] = pod
        self._pod_jobs[namespace, pod.name] = pod.job_name
        return key

    def _affordable(self, namespace: str, what: tuple[str, str], pod: Pod) -> Pod:
        """The pod, with short texts if there is no room for its own."""
        refused = self._budget.charge(namespace, what, texts_of(pod)) is not None
        return with_short_texts(pod) if refused else pod

    def _put_dependent(self, kind: Kind, namespace: str, dependent: Dependent, job_name: str) -> Key | None:
        if dependent.name not in {job_name, dependent.owner_job}:
            return None
        key = Key(namespace, dependent.name)
        entry = self._entry(key)
        held = entry.dependents.get(kind)
        if held is not None and not _newer(held.resource_version, dependent.resource_version):
            return None
        entry.dependents[kind] = dependent
        return key

    def _forget_pod(self, namespace: str, name: str) -> None:
        key = Key(namespace, self._pod_jobs.pop((namespace, name)))
        entry = self._entries[key]
        self._forget_report(key, entry.pods.pop(name).uid)
        self._budget.charge(namespace, (Kind.POD, name), 0)
        self._delete_if_empty(key, entry)

    def _forget_report(self, key: Key, pod_uid: str) -> None:
        self._entries[key].reports.pop(pod_uid, None)
        self._budget.charge(key.namespace, ("answer", pod_uid), 0)

    def _delete_if_empty(self, key: Key, entry: _Entry) -> None:
        if entry.empty and self._entries.pop(key, None) is not None:
            for what in ("answer", "departed"):
                self._budget.charge(key.namespace, (what, key.name), 0)

    def _entry(self, key: Key) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
        return entry

    def _add_tombstone(self, uid: str) -> None:
        self._tombstones[uid] = None
        if len(self._tombstones) > MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)


def _uid_of(entry: _Entry, kind: Kind, name: str) -> str | None:
    if kind is Kind.JOB:
        return entry.job["metadata"]["uid"] if entry.job is not None else None
    held = entry.pods.get(name) if kind is Kind.POD else entry.dependents.get(kind)
    return held.uid if held is not None else None


def _job_label(obj: Object) -> str:
    labels = obj["metadata"].get("labels") or {}
    return str(labels.get(names.LABEL_JOB_NAME, ""))


def _newer(held: str, offered: str) -> bool:
    """True if the offered resourceVersion is later. etcd's are increasing numbers; for any other form the last one
    wins.
    """
    if held.isdecimal() and offered.isdecimal():
        return int(offered) > int(held)
    return held != offered


def _news(held: Object, offered: Object) -> bool:
    return _newer(held["resourceVersion"], offered["resourceVersion"])
