"""The image of the training process: at least one field must set it."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import EVERY_ROLE, Cel, Job, JobRule, strategy_is_not
from tfgpujob.api.strategies import having
from tfgpujob.names import CONTAINER, Role

_NAME_IT = f"name the training container {CONTAINER}, or set spec.image or spec.trainer"
_SET_IT = "set spec.image, or spec.trainer to use the bundled trainer's"


def _named(job: Job) -> Iterator[Invalid]:
    for role, template in job.templates.items():
        names = [container.name for container in template.spec.containers]
        if names and CONTAINER not in names and not _default_image(job):
            field = f"spec.replicaSpecs.{role}.template.spec.containers"
            yield Invalid(field, f"none of them is named {CONTAINER}", _NAME_IT)


def _known(job: Job) -> Iterator[Invalid]:
    lack = () if _default_image(job) else [role for role in _roles(job) if _has_no_image(job, role)]
    if lack:
        is_added = all(role not in job.templates for role in lack) and lack == [Role.CHIEF]
        which = " the chief that is added" if is_added else ""
        yield Invalid("spec.image", f"there is no image to run{which}", _SET_IT)


def _default_image(job: Job) -> bool:
    return job.spec.trainer is not None or job.spec.image is not None


def _roles(job: Job) -> list[Role]:
    roles = [role for role, replica in job.spec.replica_specs.items()]
    if job.spec.traits.adds_chief and Role.CHIEF not in roles:
        return [Role.CHIEF, *roles]
    return roles


def _has_no_image(job: Job, role: Role) -> bool:
    template = job.templates.get(role)
    containers = template.spec.containers if template else []
    ours = [container for container in containers if container.name == CONTAINER]
    # Containers of other names only are reported by image.container-named.
    return not any(container.image for container in ours) and (bool(ours) or not containers)


_REPLICA = f"self.replicaSpecs.{EVERY_ROLE}"
_CONTAINERS = f"{_REPLICA}.template.spec.containers"
_HAS_CONTAINERS = (
    f"has({_REPLICA}.template) && has({_REPLICA}.template.spec) && has({_CONTAINERS}) && size({_CONTAINERS}) > 0"
)
_DEFAULT = "has(self.trainer) || has(self.image)"
_ADDS_NO_CHIEF = strategy_is_not(having(lambda traits: traits.adds_chief))

RULES = (
    JobRule(
        "image.container-named",
        _named,
        cel=(
            Cel(
                at="spec",
                rule=f"{_DEFAULT} || !has({_REPLICA}) || !({_HAS_CONTAINERS}) || "
                f"{_CONTAINERS}.exists(c, c.name == '{CONTAINER}')",
                field=f"replicaSpecs.{EVERY_ROLE}.template.spec.containers",
                message=f"none of them is named {CONTAINER}; {_NAME_IT}",
            ),
        ),
    ),
    JobRule(
        "image.known",
        _known,
        cel=(
            Cel(
                at="spec",
                rule=f"{_DEFAULT} || !has({_REPLICA}) || (({_HAS_CONTAINERS}) && "
                f"{_CONTAINERS}.all(c, c.name != '{CONTAINER}' || (has(c.image) && c.image != '')))",
                field="image",
                message=f"there is no image to run; {_SET_IT}",
            ),
            Cel(
                at="spec",
                rule=f"{_DEFAULT} || {_ADDS_NO_CHIEF} || has(self.replicaSpecs.chief)",
                field="image",
                message=f"there is no image to run the chief that is added; {_SET_IT}",
            ),
        ),
    ),
)
