"""The plan of an attempt: counts, ports and images, resolved once when it begins and kept in status.plan.

A new release of the operator may have other defaults. A running attempt never takes them: all its pods are built from
the plan that its first pod was built from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tfgpujob import names
from tfgpujob.api import JobSpec, ReplicaSpec, processes
from tfgpujob.core.observed.admission import Admission
from tfgpujob.core.observed.gang import choose_gang
from tfgpujob.core.observed.snapshot import Config
from tfgpujob.names import ROLES, Role

ReplicaId = tuple[Role, int]
_GATE = "peer-gate"


@dataclass(frozen=True, slots=True)
class Resize:
    """The persisted intent to resize a gang in place (core/policies/resize_in_place.py)."""

    workers: int
    """How many it is to have."""
    least: int
    """The fewest that it had or was to have since the resize began. Workers of a higher index may have left it, or may
    not have joined it yet, so none of them is required."""
    generation: int
    """metadata.generation of the job that asked for it: tells an answer to this from one to an earlier edit."""
    since: str
    """When the resize began."""

    def to_status(self) -> dict[str, Any]:
        return {
            "workers": self.workers,
            "least": self.least,
            "generation": self.generation,
            "startTime": self.since,
        }

    @staticmethod
    def from_status(resize: Mapping[str, Any]) -> Resize:
        return Resize(resize["workers"], resize["least"], resize["generation"], resize["startTime"])


@dataclass(frozen=True, slots=True)
class Limit:
    """The persisted intent to train with fewer workers than the spec asks for (core/policies/elastic_policy.py)."""

    asked: int
    """What the spec asked for when this was decided. It says nothing of another number."""
    workers: int
    """How many the gang is to have instead."""
    since: str
    """When the gang began with its number of workers."""
    probe: int = 0
    """Workers up to which pods are created to find out whether there is room; 0: none are."""

    def to_status(self) -> dict[str, Any]:
        probe = {"probe": self.probe} if self.probe else {}
        return {"asked": self.asked, "workers": self.workers, "startTime": self.since, **probe}

    @staticmethod
    def from_status(limit: Mapping[str, Any]) -> Limit:
        return Limit(limit["asked"], limit["workers"], limit["startTime"], limit.get("probe", 0))


@dataclass(frozen=True)
class Plan:
    """Who is to be there follows from the fields alone, and is asked for many times: so it is computed once."""

    spec_hash: str
    counts: Mapping[Role, int]
    """Pods a role, in the order chief, worker, ps, evaluator; only roles that have any. While a resize is under way,
    the workers that the gang was last known to have."""
    ports: Mapping[Role, tuple[int, ...]]
    """One port a TensorFlow task of a pod."""
    images: Mapping[Role, str]
    gate_image: str
    operator_version: str
    gang: str = ""
    """The gang scheduler that gets a pod group for this attempt; empty: none."""
    scheduler: str = ""
    """schedulerName of pods whose template has none; empty: the cluster's default."""
    resize: Resize | None = None
    """None: none is under way."""
    limit: Limit | None = None
    """None: the spec alone says how many workers there are to be."""
    absent: tuple[int, ...] = ()
    """Indexes of workers that the gang trains without, until the pods in their places join it
    (core/policies/trains_without.py); where there are spares, of those that are spares now."""
    shares_parts: bool = False
    """Its workers predict, and come and go (core/policies/come_and_go.py)."""
    spares: int = 0
    """Worker pods beyond those of `counts`, of which as many are never in the gang."""
    queue: str = ""
    """The queue of Kueue that admitted it; empty: it began without Kueue."""
    placement: Mapping[Role, Mapping[str, Any]] = field(default_factory=dict)
    """What Kueue adds to the pods of a role (`Admission.placement`)."""
    image_volumes: bool = False
    """Images of code and models are mounted as volumes; else init containers copy what is in them."""

    @property
    def independent_workers(self) -> bool:
        """Whether a worker may leave, and another of its name come, while the others go on: no gang of them is led."""
        return self.shares_parts or bool(self.counts.get(Role.PS))

    @property
    def verb(self) -> str:
        """What its workers do, for people."""
        return "predict" if self.shares_parts else "train"

    @property
    def admission(self) -> Admission | None:
        """What the attempt was admitted to: a restart goes on in the same place."""
        return Admission(self.queue, self.counts, self.placement) if self.queue else None

    @cached_property
    def pods(self) -> tuple[ReplicaId, ...]:
        """Every (role, index) of the attempt; in a resize also workers that are to join, and that may not have left."""
        members = ((role, index) for role in self.counts for index in range(self.pods_of(role)))
        return (*members, *self.growing)

    def pods_of(self, role: Role) -> int:
        """How many it has, with spares."""
        return self.counts.get(role, 0) + (self.spares if role is Role.WORKER else 0)

    @cached_property
    def joining(self) -> tuple[ReplicaId, ...]:
        """Workers that are to join the gang, or would if there was room."""
        return (*((Role.WORKER, index) for index in self.absent), *self.growing)

    @cached_property
    def growing(self) -> tuple[ReplicaId, ...]:
        """Those of them with which it would be more than it has."""
        wanted = self.resize.workers if self.resize is not None else 0
        probe = self.limit.probe if self.limit is not None else 0
        return tuple((Role.WORKER, index) for index in range(self.counts.get(Role.WORKER, 0), max(wanted, probe)))

    @cached_property
    def doubtful(self) -> tuple[ReplicaId, ...]:
        """Workers of which nobody knows whether they still train: a missing one is neither lost nor created anew."""
        least = self.resize.least if self.resize is not None else self.counts.get(Role.WORKER, 0)
        return tuple((Role.WORKER, index) for index in range(least, self.counts.get(Role.WORKER, 0)))

    @cached_property
    def required(self) -> tuple[ReplicaId, ...]:
        """The pods without which the attempt can't run. Evaluators are never required, nor who may come or go in a
        resize, nor whom the others train without."""
        optional = {*self.doubtful, *self.joining}
        return tuple(r for r in self.pods if r[0] is not Role.EVALUATOR and r not in optional)

    def resized(self, workers: int) -> Plan:
        """With so many workers, and none beyond them that are to join."""
        limit = replace(self.limit, probe=0) if self.limit is not None else None
        absent = tuple(index for index in self.absent if index < workers + self.spares)
        return replace(self, counts={**self.counts, Role.WORKER: workers}, resize=None, limit=limit, absent=absent)

    def anew(self) -> Plan:
        """As a new attempt begins: what was under way is over, and the spares have the highest indexes."""
        workers = self.counts.get(Role.WORKER, 0)
        spares = tuple(range(workers, workers + self.spares))
        anew = self.resized(workers) if self.joining or self.resize else self
        return replace(anew, absent=spares)

    def chief(self) -> ReplicaId:
        """As TensorFlow has it: the replica of that role, or else worker 0."""
        return chief_among(self.counts)

    def to_status(self) -> dict[str, Any]:
        return {
            "specHash": self.spec_hash,
            "counts": {str(role): count for role, count in self.counts.items()},
            "ports": {str(role): list(ports) for role, ports in self.ports.items()},
            "images": {**{str(role): image for role, image in self.images.items()}, _GATE: self.gate_image},
            "operatorVersion": self.operator_version,
            **({"gang": self.gang} if self.gang else {}),
            **({"schedulerName": self.scheduler} if self.scheduler else {}),
            **({"resize": self.resize.to_status()} if self.resize is not None else {}),
            **({"limit": self.limit.to_status()} if self.limit is not None else {}),
            **({"absent": list(self.absent)} if self.absent else {}),
            **({"sharesParts": True} if self.shares_parts else {}),
            **({"spares": self.spares} if self.spares else {}),
            **({"queue": self.queue} if self.queue else {}),
            **({"placement": {str(r): dict(added) for r, added in self.placement.items()}} if self.placement else {}),
            **({"imageVolumes": True} if self.image_volumes else {}),
        }

    @staticmethod
    def from_status(plan: Mapping[str, Any]) -> Plan:
        images = plan["images"]
        roles = [role for role in ROLES if role in plan["counts"]]
        return Plan(
            spec_hash=plan["specHash"],
            counts={role: plan["counts"][role] for role in roles},
            ports={role: tuple(plan["ports"][role]) for role in roles},
            images={role: images[role] for role in roles},
            gate_image=images[_GATE],
            operator_version=plan["operatorVersion"],
            gang=plan.get("gang", ""),
            scheduler=plan.get("schedulerName", ""),
            resize=Resize.from_status(plan["resize"]) if "resize" in plan else None,
            limit=Limit.from_status(plan["limit"]) if "limit" in plan else None,
            absent=tuple(plan.get("absent", ())),
            shares_parts=plan.get("sharesParts", False),
            spares=plan.get("spares", 0),
            queue=plan.get("queue", ""),
            placement={Role(role): added for role, added in (plan.get("placement") or {}).items()},
            image_volumes=plan.get("imageVolumes", False),
        )


def chief_among(counts: Mapping[Any, int]) -> ReplicaId:
    """`Plan.chief`, by the counts of a plan or those of status.plan."""
    return (Role.CHIEF if counts.get(Role.CHIEF) else Role.WORKER, 0)


def replica_specs(spec: JobSpec) -> dict[Role, ReplicaSpec]:
    """The replicas to run. A strategy that needs a chief gets one."""
    specs = {role: replica for role, replica in spec.replica_specs.items() if replica.replicas > 0}
    if spec.traits.adds_chief and Role.CHIEF not in specs:
        specs = {Role.CHIEF: ReplicaSpec(), **specs}
    return specs


def workers_wanted(spec: JobSpec, plan: Plan) -> int:
    """How many workers the gang is to have by now: what the spec asks for, unless there was no room for so many."""
    asked, limit = spec.replica_specs.count(Role.WORKER), plan.limit
    limited = limit is not None and limit.asked == asked and spec.run_policy.elastic_policy is not None
    return limit.workers if limit is not None and limited else asked


def resolve(spec: JobSpec, config: Config, admission: Admission | None = None, *, image_volumes: bool = False) -> Plan:
    """`admission`: what Kueue has admitted the attempt to, which may be fewer workers than the spec asks for.
    `image_volumes`: whether every node mounts such (`Snapshot.image_volumes`)."""
    specs = replica_specs(spec)
    gang, scheduler = choose_gang(spec, config)
    # Both place all pods or none, and count a spare among them.
    spares = 0 if gang or admission else spec.run_policy.spares or 0
    plan = Plan(
        spec_hash=spec.shape_hash,
        counts={
            role: admission.counts.get(role, replica.replicas) if admission else replica.replicas
            for role, replica in specs.items()
        },
        ports={
            role: tuple(names.PORT + k for k in range(processes(spec, role, replica)))
            for role, replica in specs.items()
        },
        images={role: _image(spec, replica, config) for role, replica in specs.items()},
        gate_image=config.operator_image,
        operator_version=config.operator_version,
        gang=gang,
        scheduler=scheduler,
        queue=admission.queue if admission else "",
        placement=admission.placement if admission else {},
        image_volumes=image_volumes and config.image_volumes and spec.trainer is not None and spec.trainer.has_images,
        spares=spares,
        shares_parts=spec.shares_parts,
    )
    return plan.anew()


def _image(spec: JobSpec, replica: ReplicaSpec, config: Config) -> str:
    for container in ((replica.template or {}).get("spec") or {}).get("containers") or ():
        if container.get("name") == names.CONTAINER and container.get("image"):
            return str(container["image"])
    return spec.image or config.trainer_image
