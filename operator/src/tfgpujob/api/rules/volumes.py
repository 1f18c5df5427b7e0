"""volumeClaimTemplates: each names a volume of its own, and a container mounts it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import EVERY_ROLE, Cel, Job, JobRule
from tfgpujob.api.template import PodTemplate, items
from tfgpujob.api.volumes import ClaimTemplate

_RESERVED = "tfgpu-"
_FIELD = "volumeClaimTemplates"
_AT = f"spec.replicaSpecs.{EVERY_ROLE}"


def _each(job: Job) -> Iterator[tuple[str, list[ClaimTemplate], PodTemplate]]:
    """The field, its claim templates and the pod template of each role that has any."""
    for role, replica in job.spec.replica_specs.items():
        if replica.volume_claim_templates:
            template = job.templates.get(role, PodTemplate())
            yield f"spec.replicaSpecs.{role}.{_FIELD}", replica.volume_claim_templates, template


def _unique(job: Job) -> Iterator[Invalid]:
    for field, claims, _ in _each(job):
        for name, count in Counter(claim.metadata.name for claim in claims).items():
            if count > 1:
                yield Invalid(field, f"{count} are named {name}", "give each a name of its own")


def _reserved(job: Job) -> Iterator[Invalid]:
    for field, claims, _ in _each(job):
        for index, claim in enumerate(claims):
            if claim.metadata.name.startswith(_RESERVED):
                fix = f"choose a name that does not begin with {_RESERVED}: those are the operator's"
                yield Invalid(f"{field}[{index}].metadata.name", f"{claim.metadata.name!r} is reserved", fix)


def _volume_too(job: Job) -> Iterator[Invalid]:
    for field, claims, template in _each(job):
        volumes = {volume.name: index for index, volume in enumerate(template.spec.volumes)}
        for index, claim in enumerate(claims):
            name = claim.metadata.name
            if name in volumes:
                other = f"{field.removesuffix(_FIELD)}template.spec.volumes[{volumes[name]}]"
                problem = f"{name} is also the name of {other}"
                yield Invalid(f"{field}[{index}].metadata.name", problem, "remove one of them, or rename it")


def _mounted(job: Job) -> Iterator[Invalid]:
    for field, claims, template in _each(job):
        mounted = {
            str(mount.get("name"))
            for _, container in template.spec.each_container()
            for kind in ("volumeMounts", "volumeDevices")
            for _, mount in items(container, kind)
        }
        for index, claim in enumerate(claims):
            if claim.metadata.name not in mounted:
                yield Invalid(
                    f"{field}[{index}]",
                    "no container mounts it, so what is written would go elsewhere",
                    f"add a volumeMount named {claim.metadata.name} to the container tensorflow in "
                    f"{field.removesuffix(_FIELD)}template",
                )


def _there(job: Job) -> Iterator[Invalid]:
    for role, template in job.templates.items():
        claims = getattr(job.spec.replica_specs, role).volume_claim_templates or ()
        there = {volume.name for volume in template.spec.volumes} | {claim.metadata.name for claim in claims}
        for place, container in template.spec.each_container():
            for index, mount in items(container, "volumeMounts"):
                name = mount.get("name")
                if isinstance(name, str) and name not in there and not name.startswith(_RESERVED):
                    field = f"spec.replicaSpecs.{role}.template.spec.{place}.volumeMounts[{index}].name"
                    yield Invalid(field, f"{name!r} is no volume of the pod", "add it to volumes, or correct the name")


_TWO_LISTS = "a list against the lists of the template: a cost limit would have to cap what people may write"

RULES = (
    JobRule(
        "volumes.unique",
        _unique,
        cel=(
            Cel(
                at=_AT,
                rule=f"!has(self.{_FIELD}) || self.{_FIELD}.all(a, self.{_FIELD}.exists_one(b, "
                "b.metadata.name == a.metadata.name))",
                field=_FIELD,
                message="two have the same name; give each a name of its own",
            ),
        ),
    ),
    JobRule(
        "volumes.reserved-names",
        _reserved,
        cel=(
            Cel(
                at=_AT,
                rule=f"!has(self.{_FIELD}) || self.{_FIELD}.all(a, !a.metadata.name.startsWith('{_RESERVED}'))",
                field=_FIELD,
                message=f"a name is reserved; choose one that does not begin with {_RESERVED}: those are the "
                "operator's",
            ),
        ),
    ),
    JobRule("volumes.volume-too", _volume_too, only_python=_TWO_LISTS),
    JobRule("volumes.mounted", _mounted, only_python=_TWO_LISTS),
    JobRule("volumes.there", _there, only_python=_TWO_LISTS),
)
