"""What is known of a job, read once from the objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tfgpujob import names
from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.ownership import other_manager
from tfgpujob.core.observed.snapshot import Object, Pod
from tfgpujob.core.observed.trim import trim_pod

AWAY_SECONDS = 20
"""An operator that runs has written into the status before."""
_EMPTY: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Facts:
    job: Object
    pods: tuple[Pod, ...]
    """In the order chief, worker, ps, evaluator, then by index."""
    events: tuple[Object, ...]
    """Those about the job."""
    warnings: tuple[Object, ...]
    """Those about its pods, as far as they are warnings."""
    nodes: tuple[Object, ...] | None
    """None if the user may not list them."""
    now: datetime

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def spec(self) -> Mapping[str, Any]:
        found = self.job.get("spec")
        return found if isinstance(found, Mapping) else _EMPTY

    @property
    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.job.get("status") or _EMPTY
        return found

    def condition(self, kind: str) -> Mapping[str, Any]:
        """The condition, or an empty mapping."""
        for condition in self.status.get("conditions") or ():
            if condition["type"] == kind:
                found: Mapping[str, Any] = condition
                return found
        return _EMPTY

    def is_true(self, kind: str) -> bool:
        return is_true(self.job, kind)

    @property
    def gone(self) -> bool:
        """Whether it is read from the history: it is not in the cluster any more."""
        return names.GONE in self.job

    def lost_nodes(self) -> frozenset[str]:
        """Nodes of the job's pods that are gone or not ready."""
        if self.nodes is None:
            return frozenset()
        ready = {node["metadata"]["name"] for node in self.nodes if is_true(node, "Ready")}
        return frozenset(pod.node for pod in self.pods if pod.node) - ready


def gather(
    job: Object, pods: Sequence[Object], events: Sequence[Object], nodes: Sequence[Object] | None, now: datetime
) -> Facts:
    """`pods` are all pods with the job's label. A job from the history is described as of the time when it was last
    seen.
    """
    now = min(now, moment(job.get(names.GONE)) or now)
    roles = [str(role) for role in names.Role]
    uid = job["metadata"].get("uid")
    trimmed = [pod for pod in map(trim_pod, pods) if pod.owner_uid == uid and pod.role in roles]
    trimmed.sort(key=lambda pod: (roles.index(pod.role), pod.index))
    by_uid = [((event.get("involvedObject") or _EMPTY).get("uid"), event) for event in events]
    of_job = tuple(event for about, event in by_uid if about == uid)
    of_pods = tuple(event for about, event in by_uid if about in {pod.uid for pod in trimmed})
    return Facts(job, tuple(trimmed), of_job, of_pods, None if nodes is None else tuple(nodes), now)


def unseen_seconds(job: Object, now: datetime) -> float:
    """For how long the operator has not looked at the job, if that is longer than it ever takes; else 0."""
    created = moment(job["metadata"].get("creationTimestamp"))
    if created is None or (job.get("status") or _EMPTY).get("conditions") or other_manager(job)[1]:
        return 0
    seconds = (now - created).total_seconds()
    return seconds if seconds > AWAY_SECONDS else 0


def moment(text: str | None) -> datetime | None:
    """A Kubernetes timestamp; None for anything else."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except ValueError:
        return None
