"""Who is in a job: the pods that an attempt is to have, which of them it needs, and which are to join or to leave.

One value, whose answers are computed once; status.plan records what they follow from (docs/design/membership.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from tfgpujob.api import JobSpec, Recovery, RunPolicy
from tfgpujob.names import ROLES, Role

ReplicaId = tuple[Role, int]


class Kind(StrEnum):
    """How the workers of a job belong together."""

    GANG = "gang"
    """They begin each round together, or each is needed."""
    BESIDE_SERVERS = "beside parameter servers"
    """The chief gives a batch to each worker that it reaches."""
    SHARED_PARTS = "shared parts"
    """They predict, and each takes the next part of the rows that no other has."""


_GANG = frozenset({Role.CHIEF, Role.WORKER})


@dataclass(frozen=True, slots=True)
class Resize:
    """The persisted intent to resize a gang in place."""

    workers: int
    """How many it is to have."""
    least: int
    """The fewest that it had or was to have since the resize began. Workers of a higher index may have left it, or may
    not have joined it yet, so none of them is required."""
    generation: int
    """metadata.generation of the job that requested it: distinguishes its answers from those to an earlier edit."""
    since: str
    """When the resize began."""

    def to_status(self) -> dict[str, Any]:
        fields = {"workers": self.workers, "least": self.least, "generation": self.generation}
        return {**fields, "startTime": self.since}

    @staticmethod
    def from_status(resize: Mapping[str, Any]) -> Resize:
        return Resize(resize["workers"], resize["least"], resize["generation"], resize["startTime"])


@dataclass(frozen=True, slots=True)
class Limit:
    """The persisted intent to train with fewer workers than the spec asks for."""

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
class Membership:
    counts: Mapping[Role, int]
    """Pods a role, in the order chief, worker, ps, evaluator; only roles that have any. Without spares. While a resize
    is under way, the workers that the gang was last known to have."""
    resize: Resize | None = None
    """None: none is under way."""
    limit: Limit | None = None
    """None: the spec alone says how many workers there are to be."""
    absent: tuple[int, ...] = ()
    """Indexes of workers that the others do without until their pods join; where there are spares, of those that are
    spares now."""
    spares: int = 0
    """Worker pods beyond those of `counts`, of which as many are never in the gang."""
    shares_parts: bool = False

    @staticmethod
    def begin(spec: JobSpec, counts: Mapping[Role, int], *, placed_alone: bool) -> Membership:
        """The members of an attempt that begins. `placed_alone`: neither Kueue nor a gang scheduler places all pods or
        none; it would count a spare."""
        spares = (spec.run_policy.spares or 0) if placed_alone else 0
        return Membership(counts, spares=spares, shares_parts=spec.shares_parts).of_new_attempt()

    @property
    def kind(self) -> Kind:
        if self.shares_parts:
            return Kind.SHARED_PARTS
        return Kind.BESIDE_SERVERS if self.counts.get(Role.PS) else Kind.GANG

    @property
    def independent(self) -> bool:
        """Whether a worker may leave, and another of its name come, while the others continue: no gang is led."""
        return self.kind is not Kind.GANG

    @property
    def verb(self) -> str:
        """What its workers do, for people."""
        return "predict" if self.shares_parts else "train"

    @property
    def workers(self) -> int:
        return self.counts.get(Role.WORKER, 0)

    @property
    def chief(self) -> ReplicaId:
        """As TensorFlow has it: the replica of that role, or else worker 0."""
        return chief_among(self.counts)

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
        return tuple((Role.WORKER, index) for index in range(self.workers, max(wanted, probe)))

    @cached_property
    def doubtful(self) -> tuple[ReplicaId, ...]:
        """Workers that may or may not train still: a missing one is neither lost nor created again."""
        least = self.resize.least if self.resize is not None else self.workers
        return tuple((Role.WORKER, index) for index in range(least, self.workers))

    @cached_property
    def required(self) -> tuple[ReplicaId, ...]:
        """The pods without which the attempt can't run: not evaluators, nor workers that may join or leave in a resize,
        nor absent ones."""
        optional = {*self.doubtful, *self.joining}
        return tuple(r for r in self.pods if r[0] is not Role.EVALUATOR and r not in optional)

    @cached_property
    def lasting(self) -> frozenset[ReplicaId]:
        """Pods whose success is recorded for good. A worker that leaves in a resize may exit with 0, and its index may
        be needed again; not so where that ends the job."""
        others = (r for r in self.pods if r[0] is Role.EVALUATOR or self.shares_parts)
        return frozenset((*self.required, *others))

    def wanted(self, spec: JobSpec) -> int:
        """How many workers there are to be by now: as many as the spec asks for, unless there was no room for them."""
        asked, limit = spec.replica_specs.count(Role.WORKER), self.limit
        limited = limit is not None and limit.asked == asked and spec.run_policy.elastic_policy is not None
        return limit.workers if limit is not None and limited else asked

    def may_be_created(self, *, running: bool, agreed: bool, takes_in: bool) -> frozenset[ReplicaId]:
        """`agreed`: the leader has agreed to the resize. `takes_in`: the pods that train know how to take others in."""
        held: Collection[ReplicaId] = ()
        if not takes_in or (self.spares and not running):
            # A spare would take the room of one that all wait for.
            held = self.joining
        elif self.resize is not None and not agreed:
            held = self.growing
        return frozenset(self.pods) - {*held}

    def left_over(
        self, live: Collection[ReplicaId], succeeded: Collection[ReplicaId], policy: RunPolicy, *, failed: bool
    ) -> tuple[ReplicaId, ...]:
        """Those of the live that would run on after the job's end: they were to join, or wait for a lost member."""
        gang = {replica for replica in self.required if replica[0] in _GANG}
        lost = any(replica not in live and replica not in succeeded for replica in gang)
        if failed and lost and policy.recovery is Recovery.IN_PLACE:
            gang = set()
        return tuple(replica for replica in sorted(live) if replica[0] in _GANG and replica not in gang)

    def resized(self, workers: int) -> Membership:
        """With this many workers, and none that are to join."""
        absent = tuple(index for index in self.absent if index < workers + self.spares)
        counts = {**self.counts, Role.WORKER: workers}
        return replace(self.without_probe(), counts=counts, resize=None, absent=absent)

    def without_probe(self) -> Membership:
        """Without a pod that only looks for room."""
        return replace(self, limit=replace(self.limit, probe=0)) if self.limit is not None else self

    def whole(self) -> Membership:
        """With all that are to join, as a joining pod must see it."""
        joining = max((index + 1 for _, index in self.joining), default=0)
        return self.resized(max(self.pods_of(Role.WORKER), joining))

    def of_new_attempt(self) -> Membership:
        """As a new attempt begins: what was under way is over, and the spares have the highest indexes."""
        spares = tuple(range(self.workers, self.workers + self.spares))
        settled = self.resized(self.workers) if self.joining or self.resize else self
        return replace(settled, absent=spares)

    def to_plan(self) -> dict[str, Any]:
        """Its part of status.plan."""
        return {
            "counts": {str(role): count for role, count in self.counts.items()},
            **({"resize": self.resize.to_status()} if self.resize is not None else {}),
            **({"limit": self.limit.to_status()} if self.limit is not None else {}),
            **({"absent": list(self.absent)} if self.absent else {}),
            **({"sharesParts": True} if self.shares_parts else {}),
            **({"spares": self.spares} if self.spares else {}),
        }

    @staticmethod
    def from_plan(plan: Mapping[str, Any]) -> Membership:
        return Membership(
            counts={role: plan["counts"][role] for role in ROLES if role in plan["counts"]},
            resize=Resize.from_status(plan["resize"]) if "resize" in plan else None,
            limit=Limit.from_status(plan["limit"]) if "limit" in plan else None,
            absent=tuple(plan.get("absent", ())),
            spares=plan.get("spares", 0),
            shares_parts=plan.get("sharesParts", False),
        )


def chief_among(counts: Mapping[Any, int]) -> ReplicaId:
    """`Membership.chief`, by its counts or those of status.plan."""
    return (Role.CHIEF if counts.get(Role.CHIEF) else Role.WORKER, 0)
