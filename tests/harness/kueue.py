"""What Kueue writes into the status of a Workload: its side of the contract, as values.

The unit tests, the stories in memory and the local cluster play Kueue's role with the same ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tests.harness.apiserver import ApiServer
from tests.harness.history import Change
from tests.harness.resources import controller

from tfgpujob import names
from tfgpujob.core.status.builder import timestamp

Object = Mapping[str, Any]


def condition(workload: Object, kind: str) -> str:
    """`True/Admitted`; empty while there is none."""
    for found in (workload.get("status") or {}).get("conditions") or ():
        if found["type"] == kind:
            return f"{found['status']}/{found['reason']}"
    return ""


def pending(workload: Object, message: str, now: datetime) -> dict[str, Any]:
    """It does not fit yet."""
    return with_conditions(workload, now, QuotaReserved=(False, "Pending", message))


def admitted(
    workload: Object, now: datetime, *, flavor: str = "a100", counts: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """All its pods fit, or as many as `counts` says. An earlier eviction is over."""
    assignments = [
        {
            "name": pods["name"],
            "flavors": {"nvidia.com/gpu": flavor, "cpu": flavor},
            "count": (counts or {}).get(pods["name"], pods["count"]),
        }
        for pods in workload["spec"]["podSets"]
    ]
    status = with_conditions(
        workload,
        now,
        QuotaReserved=(True, "QuotaReserved", "Quota reserved in ClusterQueue all"),
        Admitted=(True, "Admitted", "The workload is admitted"),
        **({"Evicted": (False, "QuotaReserved", "Previously: evicted")} if condition(workload, "Evicted") else {}),
    )
    return {**status, "admission": {"clusterQueue": "all", "podSetAssignments": assignments}}


def reserved(workload: Object, now: datetime) -> dict[str, Any]:
    """There is room, and an admission check has to agree: MultiKueue's, once it has found a cluster."""
    status = admitted(workload, now)
    kept = [c for c in status["conditions"] if c["type"] != "Admitted"]
    return {**status, "conditions": kept, "admissionChecks": [{"name": "multikueue", "state": "Pending"}]}


def evicted(workload: Object, now: datetime, reason: str = "Preempted") -> dict[str, Any]:
    """Its pods have to go; the quota is free when its owner says so. MultiKueue has to find a cluster again."""
    status = with_conditions(
        workload, now, Evicted=(True, reason, "Preempted to accommodate a workload of more priority")
    )
    return {key: value for key, value in status.items() if key != "clusterName"}


class Kueue:
    """Admits every Workload as soon as its queue is open, and again once an evicted one's quota was given back."""

    def __init__(self, server: ApiServer, delay: float = 0.5) -> None:
        self.server = server
        self.delay = delay
        self.open = True
        self._pending = False

    def watch(self) -> None:
        nodes = {"nodeLabels": {"gpu": "a100"}}
        self.server.create("ResourceFlavor", "", {"metadata": {"name": "a100"}, "spec": nodes}, by="setup")
        self.server.observers.append(self._notice)

    def set_open(self, on: bool) -> None:
        self.open = on
        self._notice(None)

    def evict(self, namespace: str, name: str) -> None:
        held = self.server.get("Workload", namespace, name)
        self._write(held, evicted(held, self.server.clock()))

    def _notice(self, change: Change | None) -> None:
        if (change is None or change.kind == "Workload") and not self._pending:
            self._pending = True
            asyncio.get_running_loop().call_later(self.delay, self._schedule)

    def _schedule(self) -> None:
        self._pending = False
        for held in self.server.select("Workload") if self.open else ():
            if may_be_admitted(held):
                given = reserved if self._is_dispatched(held) else admitted
                self._write(held, given(held, self.server.clock()))

    def _is_dispatched(self, held: Object) -> bool:
        """Whether MultiKueue has to find a cluster for it."""
        owner, namespace = controller(held), held["metadata"]["namespace"]
        job = self.server.objects.get((names.KIND, namespace, owner["name"])) if owner else None
        return job is not None and job["spec"].get("managedBy") == names.MULTIKUEUE

    def _write(self, held: dict[str, Any], status: Object) -> None:
        body = {**held, "status": dict(status)}
        self.server.replace("Workload", held["metadata"]["namespace"], body, status=True, by="kueue")


def may_be_admitted(held: Object) -> bool:
    """It is active and waits: an evicted one once its owner has given its quota back and put it into the queue."""
    said = {
        kind: condition(held, kind).partition("/")[0] for kind in ("QuotaReserved", "Evicted", "Requeued", "Finished")
    }
    waits = "True" not in {said["QuotaReserved"], said["Finished"]} and "deletionTimestamp" not in held["metadata"]
    at_once = condition(held, "Requeued").endswith("/AdmissionCheck")  # by Kueue itself: the check names no delay
    requeued = said["Evicted"] != "True" or said["Requeued"] == "True" or at_once
    return waits and requeued and held["spec"].get("active") is not False


def with_conditions(workload: Object, now: datetime, **conditions: tuple[bool, str, str]) -> dict[str, Any]:
    """The status of the Workload with these conditions: whether it is so, the reason and the message."""
    status = dict(workload.get("status") or {})
    kept = [c for c in status.get("conditions") or () if c["type"] not in conditions]
    changed = [
        {"type": kind, "status": str(on), "reason": reason, "message": message, "lastTransitionTime": timestamp(now)}
        for kind, (on, reason, message) in conditions.items()
    ]
    return {**status, "conditions": [*kept, *changed]}
