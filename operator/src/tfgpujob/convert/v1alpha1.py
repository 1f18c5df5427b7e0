"""What only the first version of TFJob has: a list of roles, and only the pods' own restartPolicy.

The chief's exit code decided about a restart, as ExitCode does; every other replica was restarted without limit.
"""

from __future__ import annotations

from typing import Any

from tfgpujob import names
from tfgpujob.convert.notes import Effect, Part
from tfgpujob.convert.roles import Replica, role_of
from tfgpujob.convert.run_policy import clean_up, no_backoff_limit
from tfgpujob.names import Role

_MASTER = "MASTER"
_DECIDER_RESTARTS = "is ExitCode, as v1alpha1 treats the chief: exit codes of 1 to 127 end the job"
_OTHERS_RESTART = "is OnFailure; v1alpha1 runs it again after any exit code, 0 too"


def is_v1alpha1(spec: Part) -> bool:
    """Detected by its structure, since a file may have any version."""
    return "replicaSpecs" in spec and "tfReplicaSpecs" not in spec


def run_policy(spec: Part) -> dict[str, Any]:
    target: dict[str, Any] = {}
    clean_up(spec, "cleanupPodPolicy", spec, target, before="All")
    no_backoff_limit(spec)
    spec.drop("the operator names pods by their job", "RuntimeId")
    return target


def replicas(spec: Part) -> dict[Role, Replica]:
    """By role. Reads everything else that the spec says of them."""
    given = spec.take("replicaSpecs")
    if not isinstance(given, list):
        spec.note(Effect.REFUSED, "replicaSpecs", "is no list: give a list of replicas with a tfReplicaType each")
        return {}
    sources: dict[Role, Part] = {}
    for i, item in enumerate(given):
        source = Part(item, spec.at(f"replicaSpecs[{i}]"), spec.notes)
        _port(source)
        role = role_of(source, "tfReplicaType", str(source.take("tfReplicaType") or _MASTER), sources)
        if role is not None:
            sources[role] = source
    _servers_without_a_program(spec, sources)
    decider = _decider(spec, sources)
    return {role: _replica(role, source, decider) for role, source in sources.items()}


def _replica(role: Role, source: Part, decider: Role) -> Replica:
    text, policy = (_DECIDER_RESTARTS, "ExitCode") if role is decider else (_OTHERS_RESTART, "OnFailure")
    source.note(Effect.CHANGED, "restartPolicy", text)
    return Replica(source, policy)


def _port(source: Part) -> None:
    port = source.take("tfPort")
    if port is not None and port != names.PORT:
        text = f"TF_CONFIG names port {names.PORT}, not {port}: the program must listen where TF_CONFIG says"
        source.note(Effect.CHANGED, "tfPort", text)


def _servers_without_a_program(spec: Part, sources: dict[Role, Part]) -> None:
    spec.drop("was the image of parameter servers without a template", "tfImage")
    for role, source in sources.items():
        if role is Role.PS and "template" not in source:
            text = "is missing: TFJob ran a server of its own then; give a template whose program starts one"
            source.note(Effect.REFUSED, "template", text)


def _decider(spec: Part, sources: dict[Role, Part]) -> Role:
    """The role whose first replica decides how the job ends: the chief, else worker 0. Notes a different setting."""
    decider = Role.CHIEF if Role.CHIEF in sources else Role.WORKER
    policy = spec.part("terminationPolicy")
    chief = policy.part("chief")
    name, index = chief.take("replicaName"), chief.take("replicaIndex")
    policy.close()
    chief.close()
    if name is None and index is None:
        return decider
    written = {Role.CHIEF: _MASTER, Role.WORKER: "WORKER"}[decider]
    if (str(name or _MASTER).upper(), index or 0) == (written, 0):
        chief.note(Effect.NO_EFFECT, "", f"{decider} 0 decides how the job ends anyway")
    else:
        chief.note(Effect.CHANGED, "", f"{decider} 0 decides how the job ends, not {name or _MASTER} {index or 0}")
    return decider


def place_scheduler(spec: Part, replica_specs: dict[str, dict[str, Any]]) -> None:
    """Set schedulerName in the pods' templates."""
    scheduler = spec.take("schedulerName")
    if scheduler is None:
        return
    spec.note(Effect.CHANGED, "schedulerName", "stands in each pod template")
    for replica in replica_specs.values():
        replica.setdefault("template", {}).setdefault("spec", {})["schedulerName"] = scheduler
