"""The plan of an attempt: counts, ports and images, resolved once when it begins and kept in status.plan.

A new release of the operator may have other defaults. A running attempt never uses them: all its pods are built from
the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfgpujob import names
from tfgpujob.api import JobSpec, ReplicaSpec, processes
from tfgpujob.core.observed.admission import Admission
from tfgpujob.core.observed.gang import choose_gang
from tfgpujob.core.observed.members import Membership
from tfgpujob.core.observed.snapshot import Config
from tfgpujob.names import Role

_GATE = "peer-gate"


@dataclass(frozen=True, slots=True)
class Plan:
    spec_hash: str
    members: Membership
    ports: Mapping[Role, tuple[int, ...]]
    """One port for each TensorFlow task of a pod."""
    images: Mapping[Role, str]
    gate_image: str
    operator_version: str
    gang: str = ""
    """The gang scheduler that gets a pod group for this attempt; empty: none."""
    scheduler: str = ""
    """schedulerName of pods whose template has none; empty: the cluster's default."""
    queue: str = ""
    """The Kueue queue that admitted it; empty: it began without Kueue."""
    placement: Mapping[Role, Mapping[str, Any]] = field(default_factory=dict)
    """What Kueue adds to the pods of a role (`Admission.placement`)."""
    image_volumes: bool = False
    """Images of code and models are mounted as volumes; otherwise init containers copy their content."""

    @property
    def counts(self) -> Mapping[Role, int]:
        return self.members.counts

    @property
    def admission(self) -> Admission | None:
        """What the attempt was admitted to: a restart stays within it."""
        return Admission(self.queue, self.counts, self.placement) if self.queue else None

    def to_status(self) -> dict[str, Any]:
        return {
            "specHash": self.spec_hash,
            "ports": {str(role): list(ports) for role, ports in self.ports.items()},
            "images": {**{str(role): image for role, image in self.images.items()}, _GATE: self.gate_image},
            "operatorVersion": self.operator_version,
            **self.members.to_plan(),
            **({"gang": self.gang} if self.gang else {}),
            **({"schedulerName": self.scheduler} if self.scheduler else {}),
            **({"queue": self.queue} if self.queue else {}),
            **({"placement": {str(r): dict(added) for r, added in self.placement.items()}} if self.placement else {}),
            **({"imageVolumes": True} if self.image_volumes else {}),
        }

    @staticmethod
    def from_status(plan: Mapping[str, Any]) -> Plan:
        images, members = plan["images"], Membership.from_plan(plan)
        return Plan(
            spec_hash=plan["specHash"],
            members=members,
            ports={role: tuple(plan["ports"][role]) for role in members.counts},
            images={role: images[role] for role in members.counts},
            gate_image=images[_GATE],
            operator_version=plan["operatorVersion"],
            gang=plan.get("gang", ""),
            scheduler=plan.get("schedulerName", ""),
            queue=plan.get("queue", ""),
            placement={Role(role): added for role, added in (plan.get("placement") or {}).items()},
            image_volumes=plan.get("imageVolumes", False),
        )


def replica_specs(spec: JobSpec) -> dict[Role, ReplicaSpec]:
    """The replicas to run. A strategy that needs a chief gets one."""
    specs = {role: replica for role, replica in spec.replica_specs.items() if replica.replicas > 0}
    if spec.traits.adds_chief and Role.CHIEF not in specs:
        specs = {Role.CHIEF: ReplicaSpec(), **specs}
    return specs


def resolve(spec: JobSpec, config: Config, admission: Admission | None = None, *, image_volumes: bool = False) -> Plan:
    """`admission`: what Kueue has admitted the attempt to, possibly fewer workers than the spec requests.
    `image_volumes`: whether every node mounts image volumes (`Snapshot.image_volumes`)."""
    specs = replica_specs(spec)
    gang, scheduler = choose_gang(spec, config)
    counts = {
        role: admission.counts.get(role, replica.replicas) if admission else replica.replicas
        for role, replica in specs.items()
    }
    return Plan(
        spec_hash=spec.shape_hash,
        members=Membership.begin(spec, counts, placed_alone=not gang and admission is None),
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
    )


def _image(spec: JobSpec, replica: ReplicaSpec, config: Config) -> str:
    for container in ((replica.template or {}).get("spec") or {}).get("containers") or ():
        if container.get("name") == names.CONTAINER and container.get("image"):
            return str(container["image"])
    return spec.image or config.trainer_image
