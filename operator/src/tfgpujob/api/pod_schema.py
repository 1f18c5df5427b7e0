"""A pod template against Kubernetes' own schema: the models of its Python client, which are made from its OpenAPI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tfgpujob.api.base import is_quantity
from tfgpujob.api.invalid import Invalid
from tfgpujob.api.limits import too_large
from tfgpujob.api.template import without_empty
from tfgpujob.api.translate import MAX_PROBLEMS, fields_of, model_in, no_quantity, shown, translate_all

MAX_VALUES: Final = 4_000
"""A template with more is left to the API server: to check it would hold the operator's event loop."""
_NAMES: Final = {"name", "namespace"}
_QUANTITY: Final = {"sizeLimit", "divisor"}
_QUANTITIES: Final = {"limits", "requests", "overhead"}
"""The client knows quantities as texts only. The API server takes numbers too."""
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "effect": ("NoExecute", "NoSchedule", "PreferNoSchedule"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "medium": ("Memory",),
    "operator": ("DoesNotExist", "Equal", "Exists", "In", "NotIn"),
    "protocol": ("SCTP", "TCP", "UDP"),
    "restartPolicy": ("Always",),
    "terminationMessagePolicy": ("FallbackToLogsOnError", "File"),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway"),
}
"""What these fields take, which the schema does not say. A newer Kubernetes may know more."""


def against_schema(template: Mapping[str, Any], path: str) -> list[Invalid]:
    """What an API server would refuse or drop in a pod made from the template: unknown fields, values of another type,
    missing required fields. Containers may be missing, because the operator adds the one that trains."""
    if too_large(template, MAX_VALUES) is not None:
        return []
    # Here, since it takes 0.15 s, and most commands read no template.
    from kubernetes.aio.client.models import V1PodTemplateSpec  # noqa: PLC0415

    return _against(V1PodTemplateSpec, without_empty(template), path)


def metadata_against_schema(metadata: Any) -> list[Invalid]:
    """What an API server would refuse in the metadata of any object, but for texts that are no names."""
    if isinstance(metadata, Mapping) and all(key in _NAMES and isinstance(metadata[key], str) for key in metadata):
        return []  # without the time that the import takes
    from kubernetes.aio.client.models import V1ObjectMeta  # noqa: PLC0415

    return _against(V1ObjectMeta, metadata, "metadata")


def _against(model: type[BaseModel], value: Any, path: str) -> list[Invalid]:
    try:
        model.model_validate(value)
    except ValidationError as error:
        if problems := translate_all(error, path, model, value, ignore=_is_fine):
            return problems
    return [*islice(_beyond_types(value, model, path), MAX_PROBLEMS)]


def _is_fine(error: ErrorDetails) -> bool:
    where = error["loc"]
    if error["type"] == "missing":
        return where == ("spec", "containers")
    # Those that are none are found below.
    return any(key in _QUANTITY for key in where[-1:]) or any(key in _QUANTITIES for key in where[-2:-1])


def _beyond_types(value: Any, model: type[BaseModel], path: str) -> Iterator[Invalid]:
    """Fields with a Python name such as `env_from`, which the client reads and the API server does not; texts that are
    no quantity; words in another case than Kubernetes'."""
    for index, item in enumerate(value) if isinstance(value, list) else ():
        yield from _beyond_types(item, model, f"{path}[{index}]")
    fields = fields_of(model)
    for key, item in value.items() if isinstance(value, Mapping) else ():
        where = f"{path}.{key}"
        if key not in fields:
            if key in model.model_fields:
                yield Invalid(where, "is not a field", f"did you mean {model.model_fields[key].serialization_alias}?")
        elif key in _QUANTITY or key in _QUANTITIES:
            quantities = {where: item} if key in _QUANTITY else {f"{where}.{name}": each for name, each in item.items()}
            yield from (Invalid(at, *no_quantity(each)) for at, each in quantities.items() if not is_quantity(each))
        elif key in _WORDS and isinstance(item, str):
            meant = (word for word in _WORDS[key] if word != item and word.lower() == item.lower())
            yield from (Invalid(where, f"{shown(item)} is not known", f"did you mean {word}?") for word in meant)
        elif inside := model_in(fields[key]):
            yield from _beyond_types(item, inside, where)
