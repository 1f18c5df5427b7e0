"""Gang schedulers: those that the operator supports, and which of them places the pods of an attempt.

To add one: a member of `api.Gang`, the kind of its pod group in `snapshot.Kind`, a row here, and the spec of the pod
group in `core/pods/pod_group.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfgpujob.api import Gang, Invalid, JobSpec, SchedulingPolicy
from tfgpujob.core.observed.snapshot import Config, Kind

_DEFAULT_SCHEDULER: Final = "default-scheduler"
_FIELD: Final = "spec.runPolicy.schedulingPolicy"


@dataclass(frozen=True, slots=True)
class GangScheduler:
    """The traits of one."""

    kinds: tuple[Kind, ...]
    """Kinds of its pod group, the newest version first."""
    obeys: frozenset[str]
    """Fields of schedulingPolicy for a gang scheduler that its pod group has."""
    scheduler: str = ""
    """schedulerName of its pods; empty: the cluster's default scheduler, or one that the administrator names."""
    annotation: str = ""
    """The pod's annotation that names the pod group, if it uses one."""
    label: str = ""
    """The pod's label that names it."""
    pod_field: str = ""
    """The field of the pod's spec that names it."""


GANG_SCHEDULERS: Final[Mapping[str, GangScheduler]] = {
    Gang.VOLCANO: GangScheduler(
        (Kind.VOLCANO_POD_GROUP,),
        frozenset({"minAvailable", "minResources", "queue"}),
        scheduler="volcano",
        annotation="scheduling.k8s.io/group-name",
    ),
    Gang.SCHEDULER_PLUGINS: GangScheduler(
        (Kind.COSCHEDULING_POD_GROUP,),
        frozenset({"minAvailable", "minResources"}),
        label="scheduling.x-k8s.io/pod-group",
    ),
    Gang.NATIVE: GangScheduler(
        (Kind.NATIVE_POD_GROUP, Kind.NATIVE_V1ALPHA3_POD_GROUP, Kind.NATIVE_V1ALPHA2_POD_GROUP),
        frozenset({"minAvailable"}),
        pod_field="schedulingGroup",
    ),
}


def scheduling_policy(spec: JobSpec) -> SchedulingPolicy:
    return spec.run_policy.scheduling_policy or SchedulingPolicy()


def choose_gang(spec: JobSpec, config: Config) -> tuple[str, str]:
    """The gang scheduler of an attempt that begins now, and the schedulerName of its pods; empty for none."""
    served = [gang for gang, _ in config.gangs or ()]
    wanted = scheduling_policy(spec).gang
    if wanted is Gang.AUTO:
        gang = config.default_gang or (served[0] if len(served) == 1 else "")
        if gang not in served or _is_scheduled_otherwise(spec, _scheduler(gang, config)):
            return "", ""
    else:
        gang = str(wanted)
    return (gang, _scheduler(gang, config)) if gang in served else ("", "")


def _scheduler(gang: str, config: Config) -> str:
    return config.coscheduling_scheduler if gang == Gang.SCHEDULER_PLUGINS else GANG_SCHEDULERS[gang].scheduler


def _is_scheduled_otherwise(spec: JobSpec, scheduler: str) -> bool:
    """True if a template sets a pod group of its own, or another scheduler, which Auto respects."""
    for _, replica in spec.replica_specs.items():  # noqa: PERF102 (no mapping)
        template: Mapping[str, Any] = replica.template or {}
        pod, metadata = template.get("spec") or {}, template.get("metadata") or {}
        if (pod.get("schedulerName") or scheduler) not in {scheduler, scheduler or _DEFAULT_SCHEDULER}:
            return True
        places = (pod, metadata.get("annotations") or {}, metadata.get("labels") or {})
        keys = {key for row in GANG_SCHEDULERS.values() for key in (row.annotation, row.label, row.pod_field) if key}
        if any(not keys.isdisjoint(place) for place in places):
            return True
    return False


def pod_group_kind(gang: str, config: Config) -> Kind | None:
    """The kind of an attempt's pod group. None: it has none, or its gang scheduler is not configured any more."""
    return dict(config.gangs or ()).get(gang)


def unserved_gang(spec: JobSpec, config: Config) -> Invalid | None:
    """A job that names a gang scheduler which is not installed would wait forever, or run without it: it is refused."""
    wanted = scheduling_policy(spec).gang
    served = [gang for gang, _ in config.gangs or ()]
    if config.gangs is None or wanted in {Gang.AUTO, Gang.NONE, *served}:
        return None
    known = f"one of {', '.join(served)}" if served else "none"
    return Invalid(
        f"{_FIELD}.gang",
        f"{wanted} is no gang scheduler that this operator uses: it uses {known}",
        "leave gang out, or have an administrator install the scheduler, name it in the chart's gang.backends and "
        "restart the operator",
    )


def without_effect(spec: JobSpec, gang: str) -> Iterator[str]:
    """One sentence for each field of schedulingPolicy without effect. `gang`: empty for none."""
    policy = scheduling_policy(spec)
    if not gang and policy.gang not in {Gang.AUTO, Gang.NONE}:
        yield f"{_FIELD}.gang has no effect: {policy.gang} is not in use."
    obeyed = GANG_SCHEDULERS[gang].obeys if gang else frozenset[str]()
    given = policy.model_dump(by_alias=True, exclude_none=True)
    for field in ("minAvailable", "minResources", "queue"):
        if field in given and field not in obeyed:
            yield f"{_FIELD}.{field} has no effect{f' with {gang}' if gang else _NOBODY}."


_NOBODY: Final = (
    " without a gang scheduler: an administrator names it in gang.backends, or each role's template says it, by "
    "schedulerName and the scheduler's own labels and annotations"
)
