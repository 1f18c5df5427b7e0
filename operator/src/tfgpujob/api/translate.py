"""pydantic's errors in Kubernetes' terms: the field's path, the problem, the fix."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.spec import JobSpec
from tfgpujob.api.trainer import model_of
from tfgpujob.units import counted

MAX_PROBLEMS: Final = 32
"""Maximum of each kind: an object may have a problem in each of 20,000 values, and a status has room for fewer."""
_TFJOB_KEYS = {
    "master": "the role is called chief here: rename it",
    "tfReplicaSpecs": "it is called replicaSpecs here, with roles in lower case",
    "cmd": "it is called command here: rename it",
    "batch": "it is called globalBatchSize in spec.trainer",
    "enableDynamicWorker": "remove it: under ParameterServer, workers may come and go anyway",
}
_IN_THE_CODE: Final = frozenset({"callbacks", "learningrate", "loss", "lr", "metrics", "optimizer"})
_TEMPLATE: Final = "spec.replicaSpecs.<role>.template"
_CONTAINER: Final = f"{_TEMPLATE}.spec.containers[tensorflow]"
_PLACES: Final = {
    _TEMPLATE: "metadata spec",
    f"{_TEMPLATE}.spec": "affinity containers hostNetwork imagePullSecrets initContainers nodeName nodeSelector "
    "priorityClassName runtimeClassName schedulerName serviceAccountName tolerations volumes",
    _CONTAINER: "command env envFrom image imagePullPolicy livenessProbe ports resources securityContext volumeMounts",
    f"{_CONTAINER}.resources": "limits requests",
    f"{_CONTAINER}.resources.limits": "cpu memory",
}
"""Where fields of a pod belong that users write elsewhere."""
_PATTERNS = {
    "resourceName": "write it as domain/name, such as nvidia.com/gpu",
    "managedBy": "write it as domain/name, such as tfgpu.dev/operator",
    "directory": "give an absolute path, such as /output",
    "store": "give a URL, such as s3://bucket/folder",
    "name": "use lower-case letters, digits, - and .",
    "claimName": "use lower-case letters, digits, - and .",
    "claim": "use lower-case letters, digits, - and .",
}
_LONGEST_WORD = 64
"""Longer than any field: comparing words takes quadratic time."""
_ELSEWHERE = {
    "KAI": "remove it: KAI makes pod groups itself. For its queues set schedulerName: kai-scheduler and the label "
    "kai.scheduler/queue in each template",
}
"""Names that users write for something that has another name here."""
_TYPES = {
    type(None): "empty",
    bool: "a yes-or-no value",
    int: "a number",
    float: "a number with a fraction",
    str: "text",
    list: "a list",
}
_KINDS = {
    "int": "a whole number, without quotes",
    "float": "a number, without quotes",
    "bool": "true or false, without quotes",
    "string": "text; put quotes around it",
    "dict": "a mapping of keys to values",
    "model": "a mapping of keys to values",
    "list": "a list",
    "datetime": "a time, such as 2026-01-31T12:00:00Z",
}


def translate_all(
    error: ValidationError,
    prefix: str,
    model: type[BaseModel],
    value: Mapping[str, Any],
    ignore: Callable[[ErrorDetails], bool] = lambda _: False,
) -> list[Invalid]:
    """The first MAX_PROBLEMS problems; `model` is what was validated, `prefix` its path."""
    if error.error_count() > MAX_PROBLEMS * MAX_PROBLEMS:
        # Validate the first values alone if there are too many: wording all problems takes too long.
        try:
            model.model_validate(_shortened(value), by_alias=True, by_name=False)
        except ValidationError as shorter:
            error = shorter
        else:
            return [Invalid(prefix, f"has {error.error_count():,} problems", "correct it")]
    found = (detail for detail in error.errors(include_url=False) if not ignore(detail))
    problems = [_translate(detail, prefix, model) for detail in islice(found, MAX_PROBLEMS)]
    # Only the misspelled key is reported; that the right one is missing follows from it.
    misspelled = {
        f"{p.field.rpartition('.')[0]}.{p.fix.removeprefix('did you mean ').removesuffix('?')}"
        for p in problems
        if p.fix.startswith("did you mean ")
    }
    return [p for p in problems if not (p.problem == "is missing" and p.field in misspelled)]


def _shortened(value: Any) -> Any:
    """The value with the first MAX_PROBLEMS items of each list and mapping."""
    if isinstance(value, Mapping):
        return {key: _shortened(item) for key, item in islice(value.items(), MAX_PROBLEMS)}
    return [_shortened(item) for item in value[:MAX_PROBLEMS]] if isinstance(value, list) else value


def _translate(error: ErrorDetails, prefix: str, model: type[BaseModel]) -> Invalid:
    location = [part for part in error["loc"] if part != "[key]"]
    path = _path(prefix, location)
    kind = error["type"]
    if kind == "extra_forbidden":
        return _unknown(path, location, _model_at(model, location[:-1]))
    if kind == "empty":
        key = str((error.get("ctx") or {})["key"])
        return Invalid(_path(prefix, [*location, key]), "has no value", "give it one, or remove the line")
    if kind == "missing":
        return Invalid(path, "is missing", _how_to_add(str(location[-1])))
    return _bad_value(path, kind, error["input"], error.get("ctx") or {})


def _path(prefix: str, location: Iterable[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return (prefix + "".join(parts)).removeprefix(".")


def _bad_value(path: str, kind: str, value: Any, ctx: Mapping[str, Any]) -> Invalid:
    said = shown(value)
    for name, wanted in _KINDS.items():
        if kind.startswith(f"{name}_") and kind.endswith(("_type", "_parsing", "_from_float")):
            return Invalid(path, f"{said} is {_what(value)}", f"give {wanted}")
    leaf = path.rpartition(".")[2]
    translated: dict[str, Callable[[], tuple[str, str]]] = {
        "enum": lambda: (f"{said} is not one of {_listed(ctx)}", nearest(value, _choices(ctx))),
        "literal_error": lambda: (f"{said} is not one of {_listed(ctx)}", nearest(value, _choices(ctx))),
        "greater_than_equal": lambda: _too_small(said, value, ctx["ge"]),
        "less_than_equal": lambda: (f"{said} is too large", f"set {ctx['le']} or less"),
        "string_too_short": lambda: ("is empty", "give it a value, or remove the line"),
        "string_too_long": lambda: (f"is {len(value)} characters long", f"use at most {ctx['max_length']}"),
        "too_short": lambda: (f"has {counted(ctx['actual_length'], 'entry', 'entries')}", f"give {ctx['min_length']}"),
        "too_long": lambda: (f"has {ctx['actual_length']} entries", f"use at most {ctx['max_length']}"),
        "string_pattern_mismatch": lambda: (f"{said} is not valid", _PATTERNS.get(leaf, f"match {ctx['pattern']}")),
        "quantity": lambda: no_quantity(value),
    }
    problem, fix = translated[kind]()
    return Invalid(path, problem, fix)


def no_quantity(value: Any) -> tuple[str, str]:
    """Problem and fix."""
    return f"{shown(value)} is not a quantity", "write it as 4, 500m or 16Gi"


def _too_small(said: str, value: Any, least: int) -> tuple[str, str]:
    return f"{said} is {'negative' if value < 0 else 'too small'}", f"set {least} or more"


def _what(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return "a number beyond 64 bits"
    return _TYPES.get(type(value), "a mapping")


def shown(value: Any) -> str:
    """The value as a user wrote it, shortened when it is long."""
    if isinstance(value, dict | list):
        return "this"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _choices(ctx: Mapping[str, Any]) -> list[str]:
    """pydantic writes it as "'A', 'B' or 'C'"."""
    return [part.strip().strip("'") for part in str(ctx["expected"]).replace(" or ", ", ").split(",")]


def _listed(ctx: Mapping[str, Any]) -> str:
    return ", ".join(_choices(ctx))


def nearest(value: Any, choices: Sequence[str]) -> str:
    """The fix for a value that is none of the choices."""
    if str(value) in _ELSEWHERE:
        return _ELSEWHERE[str(value)]
    found = closest(str(value), choices)
    return f"did you mean {found}?" if found else "use one of these"


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; case is ignored."""
    word, lower = word[:_LONGEST_WORD], {name.lower(): name for name in known}
    exact = [name for low, name in lower.items() if low and word.lower().startswith(low)]
    found = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.7)
    return lower[found[0]] if found else (max(exact, key=len) if exact else None)


def _how_to_add(key: str) -> str:
    hints = {
        "strategy": "add one of OneDevice, Mirrored, MultiWorkerMirrored, ParameterServer, Custom",
        "replicaSpecs": "add it, such as replicaSpecs: {worker: {replicas: 2}}",
        "entrypoint": "name a built-in (digits), a module, or a file under /code",
    }
    return hints.get(key, "add it")


def _unknown(path: str, location: Sequence[int | str], model: type[BaseModel] | None) -> Invalid:
    key = str(location[-1])
    known = fields_of(model) if model else {}
    parent = path.rpartition(".")[0]
    if key.lower() in {k.lower() for k in _TFJOB_KEYS}:
        fix = next(text for k, text in _TFJOB_KEYS.items() if k.lower() == key.lower())
        return Invalid(path, "is not a field", fix)
    if parent == "spec.trainer" and key.lower().replace("_", "") in _IN_THE_CODE:
        return Invalid(path, "is not a field", "remove it: the code sets it, in compile() or fit()")
    nearest = closest(key, known)
    elsewhere = [] if path.startswith("metadata") else list(_elsewhere(key, parent))
    elsewhere = [place for place in elsewhere if place.startswith(f"{parent}.")] or elsewhere
    if nearest and nearest.lower().rstrip("s") == key.lower().rstrip("s"):
        return Invalid(path, "is not a field", f"did you mean {nearest}?")
    if len(elsewhere) == 1:
        return Invalid(path, "is not a field here", f"move it to {elsewhere[0]}")
    if nearest:
        return Invalid(path, "is not a field", f"did you mean {nearest}?")
    return Invalid(path, "is not a field", f"remove it; {parent} has {', '.join(known)}")


def _elsewhere(key: str, parent: str) -> Iterable[str]:
    """Where a field of this name belongs."""
    role = parent.removeprefix("spec.replicaSpecs.").partition(".")[0] if "replicaSpecs." in parent else "<role>"
    for place, keys in _PLACES.items():
        if key in keys.split():
            return [f"{place}.{key}".replace("<role>", role)]
    return [place for place in _places(JobSpec, "spec") if place.rpartition(".")[2] == key]


@functools.cache
def fields_of(model: type[BaseModel]) -> Mapping[str, Any]:
    """The type of each field, by its name in YAML."""
    return {field.serialization_alias or name: field.annotation for name, field in model.model_fields.items()}


def _model_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    found: type[BaseModel] | None = model
    for key in location:
        if isinstance(key, str) and found is not None:
            found = model_in(fields_of(found).get(key))
    return found


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of such a field, or of its items."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return model_of(annotation)
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        return next((found for arg in typing.get_args(annotation) if (found := model_in(arg))), None)
    return None


def _places(model: type[BaseModel], prefix: str) -> Iterable[str]:
    """The path of every field below the model, `<role>` standing for the roles."""
    for key, annotation in fields_of(model).items():
        role = prefix == "spec.replicaSpecs"
        if role and key != "worker":
            continue
        path = f"{prefix}.{'<role>' if role else key}"
        yield path
        below = model_in(annotation)
        if below is not None:
            yield from _places(below, path)
