"""What every policy of an attempt is given: one job, as it is observed, and the status under construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from tfgpujob.api import JobSpec
from tfgpujob.api.run_policy import ElasticPolicy
from tfgpujob.core.membership.leader import question
from tfgpujob.core.observed.members import Membership, ReplicaId
from tfgpujob.core.observed.observed_pods import ObservedPods, has_ended
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.snapshot import Agreed, Config, Refused, Said, Silent, Snapshot
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.names import Condition, Role


@dataclass(frozen=True, slots=True)
class Seen:
    snapshot: Snapshot
    builder: StatusBuilder
    """The status under construction: policies write into it, and what decides only reads it."""
    spec: JobSpec
    config: Config
    plan: Plan
    """What the current attempt was started from: status.plan."""
    observed: ObservedPods

    @property
    def now(self) -> datetime:
        return self.builder.now

    @property
    def running(self) -> bool:
        return self.builder.is_true(Condition.RUNNING)

    @property
    def created(self) -> bool:
        return self.builder.is_true(Condition.CREATED)

    @property
    def edited(self) -> bool:
        """The spec no longer describes the pods of the current attempt."""
        return self.spec.shape_hash != self.plan.spec_hash

    @property
    def policy(self) -> ElasticPolicy | None:
        return self.spec.run_policy.elastic_policy

    @property
    def members(self) -> Membership:
        return self.plan.members

    def with_members(self, members: Membership) -> Self:
        return replace(self, plan=replace(self.plan, members=members))

    @property
    def asked(self) -> int:
        """The number of workers in the spec."""
        return self.spec.replica_specs.count(Role.WORKER)

    @property
    def wanted(self) -> int:
        return self.members.wanted(self.spec)

    @property
    def placed_alone(self) -> bool:
        """Neither Kueue nor a gang scheduler places all pods or none."""
        return not self.plan.gang and not self.plan.queue

    @property
    def said(self) -> Said | None:
        """What the pod that leads has said to the question of now; an answer to an earlier one does not count."""
        leader, answer = self.observed.pods.get(self.members.chief), self.snapshot.leader_answer
        if answer is None or leader is None or answer.pod_uid != leader.uid:
            return None
        return answer.said if answer.question == question(self.observed) else None

    @property
    def agreement(self) -> Agreed | None:
        """The same, if it goes for the number that is recorded. Until then no worker may join, and none leave."""
        said, resize = self.said, self.members.resize
        return said if isinstance(said, Agreed) and resize is not None and said.wanted == resize.workers else None

    @property
    def why_not_in_place(self) -> str:
        """Why the leader does not resize the gang; empty: it does, or has not answered yet."""
        match self.said if self.members.resize is not None else None:
            case Refused(reason):
                return reason
            case Silent():
                return "its leader does not answer"
        return ""

    def has_node(self, replica: ReplicaId) -> bool:
        """True if its current pod is scheduled."""
        pod = self.observed.pods.get(replica)
        if pod is None or pod.deleting or has_ended(pod) or self.observed.lost(replica):
            return False
        return bool(pod.node) or pod.phase != "Pending"

    def unconfirmed(self, replicas: Sequence[ReplicaId]) -> tuple[str, ...]:
        """Names of their pods that are unscheduled only according to the cache."""
        there = (self.observed.pods[replica].name for replica in replicas if replica in self.observed.pods)
        return tuple(name for name in there if name not in self.snapshot.looked_up)
