"""Kueue's state of a job's Workload: whether it is admitted, to what, and why not.

Kueue's contract: a Workload's owner creates nothing before `Admitted`, stops when it is `Evicted` or deactivated, and
sets `Finished` when it is done. docs/adr/0032-kueue.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfgpujob import names
from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.snapshot import Config, Kind, Object, Snapshot, Workload
from tfgpujob.names import Role

ADMITTED: Final = "Admitted"
EVICTED: Final = "Evicted"
FINISHED: Final = "Finished"
PODS_READY: Final = "PodsReady"
QUOTA_RESERVED: Final = "QuotaReserved"
REQUEUED: Final = "Requeued"


@dataclass(frozen=True, slots=True)
class Admission:
    """What Kueue has admitted an attempt to."""

    queue: str
    counts: Mapping[Role, int]
    """Pods by role; for an elastic job possibly fewer workers than requested."""
    placement: Mapping[Role, Mapping[str, Any]]
    """What its flavors and admission checks add to the pods of a role: nodeSelector, tolerations, labels and
    annotations."""


def queue_name(job: Object) -> str:
    """The queue of the job; empty for none."""
    return str((job["metadata"].get("labels") or {}).get(names.LABEL_QUEUE, ""))


def prebuilt_name(job: Object) -> str:
    """The Workload with which MultiKueue has sent the job into this cluster; empty: it was not sent."""
    metadata = job["metadata"]
    said = ((metadata.get(field) or {}).get(names.PREBUILT_WORKLOAD) for field in ("annotations", "labels"))
    return next((str(name) for name in said if name), "")


def own_workload(snapshot: Snapshot) -> Workload | None:
    """The Workload of this job: one of an earlier job of its name has no quota for it. A Workload that MultiKueue has
    sent has no owner in this cluster."""
    held, job = snapshot.workload, snapshot.job
    prebuilt = prebuilt_name(job)
    owner = "" if prebuilt else job["metadata"]["uid"]
    return held if held is not None and held.owner_uid == owner and prebuilt in {"", held.name} else None


def related(workload: Kind, kind: str) -> Kind:
    """Kueue's other kind of that name, in the version of Workload that is used."""
    return Kind(workload.replace("Workload", kind, 1))


def condition(held: Workload, kind: str) -> Mapping[str, Any]:
    """The Workload's condition of this type; empty while it has none."""
    return next((c for c in held.status.get("conditions") or () if c["type"] == kind), {})


def has(held: Workload, kind: str) -> bool:
    return is_true({"status": held.status}, kind)


def eviction(held: Workload) -> Mapping[str, Any]:
    """The condition by which Kueue evicts it; empty while it does not."""
    return condition(held, EVICTED) if has(held, EVICTED) else {}


def holds_quota(held: Workload) -> bool:
    return has(held, QUOTA_RESERVED) or bool(held.status.get("admission"))


def is_admitted(held: Workload) -> bool:
    return held.active and not held.deleting and has(held, ADMITTED) and not has(held, EVICTED)


def is_elsewhere(held: Workload) -> bool:
    """True if MultiKueue has found a cluster for the job, whose status it copies from there."""
    found = bool(held.status.get("clusterName"))
    return found and holds_quota(held) and held.active and not held.deleting and not has(held, EVICTED)


def why_not_admitted(held: Workload) -> str:
    """Kueue's own message; empty if there is none."""
    if held.deleting:
        return f"its Workload {held.name} is being deleted."
    if has(held, FINISHED):
        return f"its Workload {held.name} is finished."
    evicted = eviction(held)
    if not held.active:
        why = f": {evicted['message']}" if evicted.get("message") else ""
        return f"its Workload {held.name} is deactivated (spec.active: false){why}".rstrip(".") + "."
    found = evicted or condition(held, QUOTA_RESERVED)
    if found.get("status") == "True" and not evicted:
        checks = ", ".join(f"{c['name']} ({c.get('state')})" for c in held.status.get("admissionChecks") or ())
        return f"its quota is reserved; it waits for its admission checks{f': {checks}' if checks else ''}."
    said = str(found.get("message") or "").rstrip(".")
    why = str(found.get("reason") or "") if evicted else ""
    told = said if why and said.startswith(why) else ": ".join(part for part in (why, said) if part)
    return f"{told}." if told else ""


def admission(snapshot: Snapshot, config: Config) -> Admission | str | None:
    """What the job's own Workload is admitted to, or why that is unknown. None: it is not admitted, or there is no
    Kueue.
    """
    held, queue = own_workload(snapshot), queue_name(snapshot.job)
    if held is None or config.kueue is None or not queue or not is_admitted(held) or has(held, FINISHED):
        return None
    flavors = snapshot.cluster_objects.get(related(config.kueue, "ResourceFlavor"), {})
    assigned = {a["name"]: a for a in (held.status.get("admission") or {}).get("podSetAssignments") or ()}
    roles = [role for role in Role if str(role) in assigned]
    unknown = {name for role in roles for name in (assigned[role].get("flavors") or {}).values()} - flavors.keys()
    if unknown:
        return f"Kueue admitted it to the ResourceFlavor {', '.join(sorted(unknown))}, which is not there."
    placement = {role: _placement(held, assigned[role], flavors) for role in roles}
    return Admission(
        queue,
        {role: int(assigned[role].get("count", held.counts.get(role, 0))) for role in roles},
        {role: added for role, added in placement.items() if added},
    )


def _placement(held: Workload, assigned: Object, flavors: Mapping[str, Object]) -> dict[str, Any]:
    added: dict[str, Any] = {"nodeSelector": {}, "tolerations": [], "labels": {}, "annotations": {}}
    for more in (*_of_flavors(assigned, flavors), *_of_checks(held, assigned["name"])):
        for key in ("nodeSelector", "labels", "annotations"):
            added[key].update(more.get(key) or {})
        added["tolerations"] += [t for t in more.get("tolerations") or () if t not in added["tolerations"]]
    return {key: value for key, value in added.items() if value}


def _of_flavors(assigned: Object, flavors: Mapping[str, Object]) -> Iterator[Mapping[str, Any]]:
    """One for each resource; often they are the same."""
    for name in sorted(set((assigned.get("flavors") or {}).values())):
        yield {"nodeSelector": flavors[name].get("nodeLabels"), "tolerations": flavors[name].get("tolerations")}


def _of_checks(held: Workload, pod_set: str) -> Iterator[Mapping[str, Any]]:
    """What an admission check has found out about the nodes: for instance a node pool that was created for the pods."""
    for check in held.status.get("admissionChecks") or ():
        yield from (update for update in check.get("podSetUpdates") or () if update.get("name") == pod_set)
