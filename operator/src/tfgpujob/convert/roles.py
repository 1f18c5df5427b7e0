"""spec.tfReplicaSpecs: roles in any spelling, how many, how they restart, their pods."""

from __future__ import annotations

from typing import Any

from tfgpujob.convert.notes import Effect, Part
from tfgpujob.convert.template import convert_template, gpu_resource
from tfgpujob.names import Role, Strategy

_ROLES = {"chief": Role.CHIEF, "master": Role.CHIEF, "worker": Role.WORKER, "ps": Role.PS, "evaluator": Role.EVALUATOR}
_ANEW = "the pod is made anew: a TFJob restarts the container in place, and keeps its emptyDir volumes"
_RESTARTS = {
    "OnFailure": _ANEW,
    "Always": f"{_ANEW}. A replica that has ended with 0 is not run again",
}


def convert_roles(specs: Part, strategy: Strategy) -> tuple[dict[str, Any], str | None]:
    """replicaSpecs in the order of the roles, and the resource that their `gpus` are of."""
    sources = _by_role(specs)
    templates = {role: source.part("template") for role, source in sources.items()}
    resource = gpu_resource([template.whole for template in templates.values()])
    found: dict[str, Any] = {}
    for role in Role:
        if role in sources:
            found[str(role)] = _convert_role(role, sources[role], templates[role], resource, strategy)
    return found, resource


def _by_role(specs: Part) -> dict[Role, Part]:
    sources: dict[Role, Part] = {}
    for key in specs.names():
        role = _ROLES.get(key.lower())
        if role is None:
            specs.take(key)
            specs.note(Effect.REFUSED, key, f"is no role of a TFJob; use one of {', '.join(Role)}")
        elif role in sources:
            specs.take(key)
            specs.note(Effect.REFUSED, key, f"is the {role} a second time: keep one of them")
        else:
            sources[role] = specs.part(key)
            if key.lower() == "master":
                specs.note(Effect.CHANGED, key, "is called chief, in TF_CONFIG and in its pod's name too")
    return sources


def _convert_role(role: Role, source: Part, template: Part, resource: str | None, strategy: Strategy) -> dict[str, Any]:
    target: dict[str, Any] = {}
    source.move(target, "replicas")
    _one_evaluator(role, source, target)
    policy = source.take("restartPolicy")
    target["restartPolicy"] = "Never" if policy is None else policy
    if policy in _RESTARTS:
        source.note(Effect.CHANGED, "restartPolicy", _RESTARTS[policy])
    body, gpus = convert_template(template, resource)
    if gpus is not None:
        target["gpus"] = gpus
    elif strategy is not Strategy.CUSTOM:
        target["gpus"] = 0
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
