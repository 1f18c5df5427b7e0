"""The creation of one pod: what its body is built from, without the body."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfgpujob.api import JobSpec
from tfgpujob.core.observed import metadata
from tfgpujob.core.observed.members import ReplicaId
from tfgpujob.core.observed.plan import Plan, replica_specs
from tfgpujob.core.observed.snapshot import Create, Kind, Object
from tfgpujob.core.pods.claim import build_claims
from tfgpujob.core.pods.device_claim import build_device_template, claims_devices
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.core.pods.restricted import restrict


@dataclass(frozen=True, slots=True)
class PodCreate:
    """A `Creation`. 512 pods share a template of up to 256 KiB, so their bodies never exist at the same time."""

    job: Object = field(repr=False)
    spec: JobSpec = field(repr=False)
    plan: Plan = field(repr=False)
    pod: Replica
    device_template: Kind | None = None
    """The kind of claim template that the cluster serves; None: none."""
    restricted: bool = False
    """Whether it complies with Pod Security "restricted"."""

    @property
    def kind(self) -> Kind:
        return Kind.POD

    @property
    def replica(self) -> ReplicaId:
        return self.pod.role, self.pod.index

    @property
    def name(self) -> str:
        return metadata.pod_name(self.job["metadata"]["name"], *self.replica)

    @property
    def body(self) -> Object:
        pod = build_pod(self.job, self.spec, self.plan, self.pod)
        return restrict(pod) if self.restricted else pod

    @property
    def needs(self) -> tuple[Create, ...]:
        """Its claims, and its claim template."""
        replica_spec = replica_specs(self.spec)[self.pod.role]
        needs = [Create(Kind.CLAIM, claim) for claim in build_claims(self.job, replica_spec, *self.replica)]
        kind, claim = self.device_template, self.spec.gpu.claim
        if claim is not None and kind is not None and claims_devices(self.spec, self.pod.role, replica_spec):
            template = build_device_template(self.job, claim, kind)
            needs += [Create(kind, template)] if template is not None else []
        return tuple(needs)
