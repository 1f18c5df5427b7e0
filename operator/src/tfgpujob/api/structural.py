"""From a model to a structural schema, the form of OpenAPI that CustomResourceDefinitions use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from tfgpujob.api.base import MAX_INT32, MAX_INT64

Schema = dict[str, Any]
_KEPT = ("format", "enum", "pattern", "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "minimum")


def structural(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """The model's schema with all references inlined. `defaults` False leaves the defaults out, as for a status."""
    source = model.model_json_schema(by_alias=True)
    return _convert(source, source.get("$defs", {}), defaults)


def _convert(source: Mapping[str, Any], definitions: Mapping[str, Any], defaults: bool) -> Schema:
    source = _resolve(source, definitions)
    schema: Schema = {}
    if "description" in source:
        schema["description"] = " ".join(str(source["description"]).split())
    if "type" in source:
        schema["type"] = source["type"]
    schema |= {key: source[key] for key in _KEPT if key in source}
    schema |= {key: value for key, value in source.items() if key.startswith("x-kubernetes-")}
    if source.get("type") == "integer":
        schema |= _integer(source)
    if defaults and source.get("default") is not None:
        schema["default"] = source["default"]
    if "items" in source:
        schema["items"] = _convert(source["items"], definitions, defaults)
    if isinstance(source.get("additionalProperties"), Mapping):
        schema["additionalProperties"] = _convert(source["additionalProperties"], definitions, defaults)
    if "properties" in source:
        if "required" in source:
            schema["required"] = source["required"]
        properties = source["properties"].items()
        schema["properties"] = {name: _convert(part, definitions, defaults) for name, part in properties}
    return schema


def _resolve(source: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace references by what they refer to, and `X or null` by X: Kubernetes omits absent fields."""
    own = dict(source)
    if "const" in own:  # the only choice
        own["enum"] = [own.pop("const")]
    if "anyOf" in own:
        choices = [choice for choice in own.pop("anyOf") if choice.get("type") != "null"]
        assert len(choices) == 1, f"a structural schema has no unions: {source}"
        return _resolve({**choices[0], **own}, definitions)
    if "$ref" in own:
        name = own.pop("$ref").rpartition("/")[2]
        return {**definitions[name], **own}
    return own


def _integer(source: Mapping[str, Any]) -> Schema:
    most = source["maximum"]
    if most == MAX_INT64:
        return {"format": "int64"}
    return {"format": "int32" if most <= MAX_INT32 else "int64", "maximum": most}
