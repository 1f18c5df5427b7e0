"""A pod template against Kubernetes' own schema: the models of its Python client, which are made from its OpenAPI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.limits import too_large
from tfgpujob.api.pod_values import QUANTITIES, QUANTITY, refused, refused_together
from tfgpujob.api.template import without_empty
from tfgpujob.api.translate import MAX_PROBLEMS, fields_of, model_in, translate_all

MAX_VALUES: Final = 4_000
"""A template with more is left to the API server: to check it would hold the operator's event loop."""
_NAMES: Final = {"name", "namespace"}


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
    # The client knows quantities as texts only. The API server takes numbers too.
    return any(key in QUANTITY for key in where[-1:]) or any(key in QUANTITIES for key in where[-2:-1])


def _beyond_types(value: Any, model: type[BaseModel], path: str) -> Iterator[Invalid]:
    """Fields with a Python name such as `env_from`, which the client reads and the API server does not, and what
    `pod_values` refuses."""
    for index, item in enumerate(value) if isinstance(value, list) else ():
        yield from _beyond_types(item, model, f"{path}[{index}]")
    if not isinstance(value, Mapping):
        return
    fields, objects, name = fields_of(model), _objects(model), model.__name__.removeprefix("V1")
    yield from refused_together(value, name, objects.keys(), path)
    for key, item in value.items():
        where = f"{path}.{key}"
        if key in objects:
            yield from _beyond_types(item, objects[key], where)
        elif key in fields:
            yield from refused(item, name, key, where, required=fields[key] is str)
        elif key in model.model_fields:
            yield Invalid(where, "is not a field", f"did you mean {model.model_fields[key].serialization_alias}?")


@cache
def _objects(model: type[BaseModel]) -> Mapping[str, type[BaseModel]]:
    """The models of its fields that are objects, or lists of them."""
    return {key: inside for key, annotation in fields_of(model).items() if (inside := model_in(annotation))}
