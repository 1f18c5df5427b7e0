"""Converts a whole TFJob."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from tfgpujob import names
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.api.limits import too_large
from tfgpujob.convert.notes import Conversion, Effect, Note, Part
from tfgpujob.convert.roles import convert_roles, replicas
from tfgpujob.convert.run_policy import convert_run_policy
from tfgpujob.names import MAX_NAME_LENGTH, NAME, Role
from tfgpujob_contract.strategies import Strategy

GROUP: Final = "kubeflow.org"
KIND: Final = "TFJob"
_GROUPS: Final = frozenset({GROUP, "tensorflow.org", "training.kubedl.io", "kubedl.io", ""})
"""API groups of TFJobs before Kubeflow's, and of KubeDL's, which have the same spec. Empty: old pages leave it out."""
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_KUBEDL: Final = "kubedl.io/"
_KUEUE: Final = "kueue.x-k8s.io/"
_DEFAULT_GPU: Final = "nvidia.com/gpu"
_IMAGE: Final = f"let the template of each role have a container {names.CONTAINER} with an image"
"""A TFJob has neither spec.image nor spec.trainer."""
_LISTED: Final = "tfReplicaSpecs"
_FIRST_VERSION: Final = f"is of TFJob's first version, which Kubeflow removed in 2019: write its roles in {_LISTED}"
_WITHOUT_SCOPE: Final = "and remove runPolicy.restartScope"
_KIND_IN_TEXT: Final = re.compile(rf"^[ \t]*+kind:[ \t]*+([\"']?){KIND}\1[ \t]*+$", re.MULTILINE)
_NOT_IN_A_NAME: Final = re.compile(r"[^a-z0-9]+")


def is_tfjob(obj: Mapping[str, Any]) -> bool:
    """A TFJob of any version, or TfJob, the name of the first version."""
    group = str(obj.get("apiVersion", "")).partition("/")[0]
    return str(obj.get("kind")).lower() == KIND.lower() and group in _GROUPS


def tfjob_inside(obj: Any, path: str = "") -> str | None:
    """Path of a TFJob inside another object, such as an Experiment or a Workflow; None if there is none."""
    if isinstance(obj, str):
        return path if _KIND_IN_TEXT.search(obj) else None
    if isinstance(obj, Mapping) and path and is_tfjob(obj):
        return path
    parts = list(obj.items() if isinstance(obj, Mapping) else enumerate(obj) if isinstance(obj, list) else ())
    places = [f"{path}.{key}".lstrip(".") if isinstance(key, str) else f"{path}[{key}]" for key, _ in parts]
    found = (tfjob_inside(part, place) for (_, part), place in zip(parts, places, strict=True))
    return next((place for place in found if place is not None), None)


def convert(obj: Mapping[str, Any], strategy: Strategy = Strategy.CUSTOM) -> Conversion:
    """`obj` is a TFJob as read from YAML; it is not changed. `strategy` is the one that its program uses.

    Host access is noted, not refused: an administrator may allow it.
    """
    if (problem := too_large(obj)) is not None:
        return Conversion("", None, (Note(Effect.REFUSED, problem.field, f"{problem.problem}; {problem.fix}"),))
    notes: list[Note] = []
    source = Part(obj, "", notes)
    source.take("apiVersion")
    source.take("kind")
    metadata = _metadata(source.part("metadata"))
    source.drop("is written by the operator", "status")
    spec, places = _spec(source.part("spec"), strategy)
    source.close()
    job = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}
    found = parse_job(job, allow_host=True)
    if not isinstance(found, JobSpec):
        notes += [
            Note(Effect.REFUSED, _in_the_file(field, places), f"{problem}; {_IMAGE if 'spec.image' in fix else fix}")
            for field, problem, fix in ((one.field, one.problem, one.fix) for one in found)
        ]
    refused = any(note.effect is Effect.REFUSED for note in notes)
    return Conversion(str(metadata.get("name", "")), None if refused else job, tuple(notes))


def _in_the_file(field: str, places: Mapping[str, str]) -> str:
    """The path in the TFJob of this path in the TFGPUJob."""
    found = max((place for place in places if f"{field}.".startswith(f"{place}.")), key=len, default=None)
    return field if found is None else places[found] + field[len(found) :]


def _metadata(source: Part) -> dict[str, Any]:
    target: dict[str, Any] = {}
    given, prefix = source.take("name"), source.take("generateName")
    name = given if given is not None else str(prefix or "").rstrip("-")
    if given is None and prefix is not None:
        source.note(Effect.CHANGED, "generateName", f"the job needs a name that is known beforehand: {name}")
    elif prefix is not None:
        source.note(Effect.NO_EFFECT, "generateName", "the job has a name")
    valid = _valid_name(str(name)) if name else ""
    if name and valid != name:
        text = f"is {valid} here: at most {MAX_NAME_LENGTH} lower-case letters, digits and -, beginning with a letter"
        source.note(Effect.CHANGED, "name", text)
    if valid:
        target["name"] = valid
    source.move(target, "namespace", "labels")
    annotations = source.part("annotations")
    annotations.drop("is kubectl's copy of the TFJob", _LAST_APPLIED)
    annotations.drop("is for KubeDL's operator", *(key for key in annotations.left() if key.startswith(_KUBEDL)))
    kept: dict[str, Any] = {}
    annotations.move(kept, *annotations.left())
    if kept:
        target["annotations"] = kept
    for key in target.get("labels") or {} if isinstance(target.get("labels"), Mapping) else ():
        if str(key).startswith(_KUEUE):
            text = "is kept; Kueue acts on it only if it is set up for TFGPUJobs"
            source.note(Effect.CHANGED, f"labels[{key}]", text)
    source.drop("belongs to the object that is in the cluster", *source.left())
    return copy.deepcopy(target)


def _valid_name(name: str) -> str:
    """The name if it is valid, else the nearest valid one; with a digest if it had to be shortened."""
    if len(name) <= MAX_NAME_LENGTH and NAME.fullmatch(name):
        return name
    clean = _NOT_IN_A_NAME.sub("-", name.lower()).strip("-")
    clean = clean if clean[:1].isalpha() else f"job-{clean}".strip("-")
    if len(clean) <= MAX_NAME_LENGTH:
        return clean
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{clean[: MAX_NAME_LENGTH - 7].rstrip('-')}-{digest}"


def _spec(source: Part, strategy: Strategy) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec, and where its replicaSpecs are in the TFJob."""
    target: dict[str, Any] = {"strategy": str(strategy)}
    run_policy = convert_run_policy(source)
    if strategy is Strategy.CUSTOM:
        # As in a TFJob: the other replicas continue.
        run_policy["restartScope"] = "Replica"
    if source.take("replicaSpecs") is not None:
        source.note(Effect.REFUSED, "replicaSpecs", _FIRST_VERSION)
    found = replicas(source.part(_LISTED))
    replica_specs, resource = convert_roles(found, strategy)
    if strategy is Strategy.PARAMETER_SERVER and Role.CHIEF not in found and Role.WORKER in found:
        template = copy.deepcopy(replica_specs["worker"].get("template", {}))
        replica_specs = {"chief": {"gpus": 0, "template": template}, **replica_specs}
        source.note(Effect.CHANGED, _LISTED, "a chief is added, with the template of worker: its program coordinates")
    target["replicaSpecs"] = replica_specs
    if resource is not None and resource != _DEFAULT_GPU:
        target["gpu"] = {"resourceName": resource}
    _success(source, target, Role.CHIEF in replica_specs)
    _dynamic_workers(source, strategy)
    managed_by = run_policy.pop("managedBy", None)
    if run_policy:
        target["runPolicy"] = run_policy
    if managed_by is not None:
        target["managedBy"] = managed_by
    if strategy is Strategy.CUSTOM and replica_specs and (advice := _advice(replica_specs)) is not None:
        source.note(Effect.ADVICE, _LISTED, advice)
    source.close()
    places = {f"spec.replicaSpecs.{role}": replica.source.path for role, replica in found.items()}
    return target, dict.fromkeys(("spec.replicaSpecs", "spec.image"), source.at(_LISTED)) | places


def _success(source: Part, target: dict[str, Any], has_chief: bool) -> None:
    policy = source.take("successPolicy")
    if policy is None or policy == "":
        return
    if has_chief:
        source.note(Effect.NO_EFFECT, "successPolicy", "the chief decides, as in a TFJob that has one")
    else:
        target["successPolicy"] = policy


def _dynamic_workers(source: Part, strategy: Strategy) -> None:
    if source.take("enableDynamicWorker") and strategy is not Strategy.PARAMETER_SERVER:
        text = "TF_CONFIG names all replicas; workers may come and go under strategy ParameterServer"
        source.note(Effect.CHANGED, "enableDynamicWorker", text)


def _advice(replica_specs: Mapping[str, Any]) -> str | None:
    """What to change for a known kind of program; None if the kind is unknown. The changed job is valid."""
    roles = {role for role, replica in replica_specs.items() if replica.get("replicas") != 0} - {Role.EVALUATOR}
    workers = replica_specs.get(Role.WORKER, {}).get("replicas", 1)
    if Role.PS in roles:
        if Role.WORKER not in roles:
            return None
        chief = "" if Role.CHIEF in roles else "add replicaSpecs.chief with the template of worker, and "
        better = (
            f"uses tf.distribute.ParameterServerStrategy, {chief}set strategy: ParameterServer: its chief is awaited"
        )
    elif len(roles) == 2 or (Role.WORKER in roles and workers != 1):
        better = f"uses MultiWorkerMirroredStrategy, set strategy: MultiWorkerMirrored, {_WITHOUT_SCOPE}: all replicas "
        better += "restart together"
    else:
        worker = "call it worker, " if Role.CHIEF in roles else ""
        devices = f"OneDevice, or Mirrored for several GPUs, {_WITHOUT_SCOPE}: it then needs no TF_CONFIG"
        better = f"trains by itself, {worker}set strategy: {devices}"
    return f"strategy is Custom, since only the program knows; if it {better}"
