"""spec.tfReplicaSpecs: roles in any spelling, their number, restart policy and pods."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from tfgpujob.convert.notes import Effect, Part
from tfgpujob.convert.template import asks_for_gpus, convert_template, gpu_resource
from tfgpujob.names import Role
from tfgpujob_contract.strategies import Strategy

_ROLES = {"chief": Role.CHIEF, "master": Role.CHIEF, "worker": Role.WORKER, "ps": Role.PS, "evaluator": Role.EVALUATOR}
_ANEW = "the pod is created again: a TFJob restarts the container in place, and keeps its emptyDir volumes"
_RESTARTS = {
    "OnFailure": _ANEW,
    "Always": f"{_ANEW}. A replica that has ended with 0 is not run again",
}


@dataclass(frozen=True, slots=True)
class Replica:
    """A role as a TFJob describes it."""

    source: Part
    restart_policy: Any


def replicas(specs: Part) -> dict[Role, Replica]:
    """spec.tfReplicaSpecs, by role."""
    found: dict[Role, Replica] = {}
    for key in specs.names():
        role = _role(specs, key, found)
        source = specs.part(key)
        if role is not None:
            found[role] = Replica(source, _restart_policy(source))
    return found


def _role(specs: Part, name: str, taken: Container[Role]) -> Role | None:
    """The role of this name; None, with a note, when it is unknown or already taken."""
    role = _ROLES.get(name.lower())
    if role is None:
        specs.note(Effect.REFUSED, name, f"{name} is no role of a TFJob; use one of {', '.join(Role)}")
    elif role in taken:
        specs.note(Effect.REFUSED, name, f"is the {role} a second time: keep one of them")
        return None
    elif name.lower() == "master":
        specs.note(Effect.CHANGED, name, "is called chief, in TF_CONFIG and in its pod's name too")
    return role


def convert_roles(found: dict[Role, Replica], strategy: Strategy) -> tuple[dict[str, Any], str | None]:
    """replicaSpecs in the order of the roles, and the resource that `gpus` counts."""
    templates = {role: replica.source.part("template") for role, replica in found.items()}
    resource = gpu_resource([template.whole for template in templates.values()])
    converted: dict[str, Any] = {}
    for role in Role:
        if role in found:
            converted[str(role)] = _convert_role(role, found[role], templates[role], resource, strategy)
    return converted, resource


def _restart_policy(source: Part) -> Any:
    policy = source.take("restartPolicy")
    if isinstance(policy, str) and policy in _RESTARTS:
        source.note(Effect.CHANGED, "restartPolicy", _RESTARTS[policy])
    return "Never" if policy is None else policy


def _convert_role(
    role: Role, replica: Replica, template: Part, resource: str | None, strategy: Strategy
) -> dict[str, Any]:
    target: dict[str, Any] = {}
    source = replica.source
    source.move(target, "replicas")
    _one_evaluator(role, source, target)
    target["restartPolicy"] = replica.restart_policy
    body, gpus = convert_template(template, resource)
    if gpus is not None or strategy is not Strategy.CUSTOM or not asks_for_gpus(body):
        # 0 too: under the strategies that notes advise, the default is 1.
        target["gpus"] = gpus or 0
    if body:
        target["template"] = body
    source.close()
    return target


def _one_evaluator(role: Role, source: Part, target: dict[str, Any]) -> None:
    if role is not Role.EVALUATOR:
        return
    source.note(Effect.CHANGED, "", "a failed evaluator never fails the job")
    count = target.get("replicas")
    if isinstance(count, int) and count > 1:
        target["replicas"] = 1
        source.note(Effect.CHANGED, "replicas", f"is 1, not {count}: TensorFlow refuses a second evaluator")
