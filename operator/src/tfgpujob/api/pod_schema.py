"""A pod template against Kubernetes' own schema: the models of its Python client, which are made from its OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.limits import too_large
from tfgpujob.api.template import without_empty
from tfgpujob.api.translate import fields_of, model_in, translate_all

MAX_VALUES: Final = 4_000
"""A template with more is left to the API server: to check it would hold the operator's event loop."""
_QUANTITY: Final = {"sizeLimit", "divisor"}
_QUANTITIES: Final = {"limits", "requests", "overhead"}
"""The client knows quantities as texts only. The API server takes numbers too."""


def against_schema(template: Mapping[str, Any], path: str) -> list[Invalid]:
    """What an API server would refuse or drop in a pod made from the template: unknown fields, values of another type,
    missing required fields. Containers may be missing, because the operator adds the one that trains."""
    if too_large(template, MAX_VALUES) is not None:
        return []
    template = without_empty(template)
    # Here, since it takes 0.15 s, and most commands read no template.
    from kubernetes.aio.client.models import V1PodTemplateSpec  # noqa: PLC0415

    try:
        V1PodTemplateSpec.model_validate(template)
    except ValidationError as error:
        if problems := translate_all(error, path, V1PodTemplateSpec, template, ignore=_is_fine):
            return problems
    found = _in_snake_case(template, V1PodTemplateSpec)
    return [Invalid(path + found[0], "is not a field", f"did you mean {found[1]}?")] if found else []


def _is_fine(error: ErrorDetails) -> bool:
    where, value = error["loc"], error["input"]
    if error["type"] == "missing":
        return where == ("spec", "containers")
    quantity = where[-1] in _QUANTITY or (where[-2:-1] and where[-2] in _QUANTITIES)
    return bool(quantity) and isinstance(value, int | float) and not isinstance(value, bool)


def _in_snake_case(value: Any, model: type[BaseModel]) -> tuple[str, str] | None:
    """The first field with a Python name such as `env_from`, which the client reads and the API server does not: its
    path below `value`, and its real name."""
    if isinstance(value, list):
        below = ((f"[{index}]", found) for index, item in enumerate(value) if (found := _in_snake_case(item, model)))
        return next(((where + path, name) for where, (path, name) in below), None)
    fields = fields_of(model)
    for key, item in value.items() if isinstance(value, Mapping) else ():
        if key not in fields:
            known = model.model_fields[key].serialization_alias if key in model.model_fields else None
            return (f".{key}", str(known)) if known else None
        inside = model_in(fields[key]) if isinstance(item, list | dict) else None
        if inside and (found := _in_snake_case(item, inside)):
            return f".{key}{found[0]}", found[1]
    return None
