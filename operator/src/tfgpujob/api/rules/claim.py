"""spec.gpu.claim: one way to select devices, and one field for their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Cel, Job, JobRule, Refusal, rules_of
from tfgpujob.api.spec import GpuSpec
from tfgpujob.api.template import items, part
from tfgpujob.names import GPU_CLAIM, Role

_FIELD: Final = "spec.gpu.claim"
_WAYS: Final = ("templateName", "deviceClassName", "firstAvailable")
_DEFAULT_RESOURCE: Final = GpuSpec.model_fields["resource_name"].default
_ONE_WAY: Final = f"keep one of {', '.join(_WAYS[:-1])} and {_WAYS[-1]}"
_BESIDE: Final = f"is set beside {_FIELD}, whose count says how many GPUs a pod gets"
_HOW_MANY: Final = "remove it, and set spec.gpu.claim.count"


def _one_way(job: Job) -> Iterator[Invalid]:
    claim = job.spec.gpu.claim
    if claim is None:
        return
    said = [name for name in _WAYS if name in claim.model_dump(by_alias=True, exclude_none=True)]
    if not said:
        yield Invalid(_FIELD, "says nothing of which devices", f"set one of {', '.join(_WAYS[:-1])} and {_WAYS[-1]}")
    elif len(said) > 1:
        yield Invalid(_FIELD, f"{' and '.join(said)} are both set", _ONE_WAY)


def _role_gpus(job: Job) -> Iterator[Invalid]:
    if job.spec.gpu.claim is None:
        return
    for role, replica in job.spec.replica_specs.items():
        trains = role not in job.spec.traits.no_gpus and role is not Role.EVALUATOR
        if replica.gpus or (replica.gpus == 0 and trains):
            fix = _HOW_MANY if trains else f"{_HOW_MANY}, or set it to 0 for a {role} on the CPU, which gets no claim"
            yield Invalid(f"spec.replicaSpecs.{role}.gpus", _BESIDE, fix)


def _limit(job: Job) -> Iterator[Invalid]:
    """A pod with both would occupy twice the GPUs."""
    for role, template in job.templates.items() if job.spec.gpu.claim is not None else ():
        place, container = template.spec.training_container() or ("", None)
        limits: Any = part(container, "resources", "limits") if container else None
        if isinstance(limits, dict) and job.spec.gpu.resource_name in limits:
            field = f"spec.replicaSpecs.{role}.template.spec.{place}.resources.limits[{job.spec.gpu.resource_name}]"
            yield Invalid(field, f"is set beside {_FIELD}: the pod would hold GPUs twice", f"remove it, or {_FIELD}")


def _reserved(job: Job) -> Iterator[Invalid]:
    for role, template in job.templates.items():
        for index, claim in items(template.spec, "resourceClaims"):
            if claim.get("name") == GPU_CLAIM:
                field = f"spec.replicaSpecs.{role}.template.spec.resourceClaims[{index}].name"
                yield Invalid(field, f"{GPU_CLAIM!r} is reserved", f"choose another: that one is {_FIELD}'s")


_PODS_GPUS: Final = "a pod's GPUs follow from role, strategy and two fields: that table stands in one place"
_NO_MODEL: Final = "the schema keeps these fields as they are given, and CEL knows no field that the schema does not"


RULES = rules_of(
    JobRule(
        "claim.one-way",
        _one_way,
        cel=(
            Cel(
                at=_FIELD,
                rule=f"{' + '.join(f'(has(self.{name}) ? 1 : 0)' for name in _WAYS)} == 1",
                message=f"one of {', '.join(_WAYS[:-1])} and {_WAYS[-1]} says which devices; {_ONE_WAY}",
            ),
        ),
    ),
    Refusal(
        "claim.selectors",
        of=lambda job: job.spec.gpu.claim,
        breaks=lambda claim: claim.selectors is not None and claim.device_class_name is None,
        at="spec.gpu.claim",
        field="selectors",
        cel="!has(self.selectors) || has(self.deviceClassName)",
        problem="select devices of deviceClassName, which is not set",
        fix="set it too, or write them into the template or into each entry of firstAvailable",
    ),
    Refusal(
        "claim.count",
        of=lambda job: job.spec.gpu.claim,
        breaks=lambda claim: claim.template_name is not None and claim.count is None,
        at="spec.gpu.claim",
        cel="!has(self.templateName) || has(self.count)",
        problem="count is not set, and the operator does not read the template templateName",
        fix="set it to the number of GPUs that a pod gets by it: TFGPU_GPUS, processesPerGpu and GPU time use it",
    ),
    Refusal(
        "claim.per-replica",
        of=lambda job: job.spec.gpu if job.spec.gpu.claim is not None else None,
        breaks=lambda gpu: gpu.per_replica is not None,
        at="spec.gpu",
        field="perReplica",
        cel="!has(self.claim) || !has(self.perReplica)",
        problem=_BESIDE,
        fix=_HOW_MANY,
    ),
    Refusal(
        "claim.resource-name",
        of=lambda job: job.spec.gpu if job.spec.gpu.claim is not None else None,
        breaks=lambda gpu: gpu.resource_name != _DEFAULT_RESOURCE,
        at="spec.gpu",
        field="resourceName",
        cel=f"!has(self.claim) || self.resourceName == '{_DEFAULT_RESOURCE}'",
        problem="is set beside spec.gpu.claim: GPUs come by one of them",
        fix="remove one of both",
    ),
    JobRule("claim.role-gpus", _role_gpus, only_python=_PODS_GPUS),
    JobRule("claim.limit", _limit, only_python=_NO_MODEL),
    JobRule("claim.reserved-name", _reserved, only_python=_NO_MODEL),
)
