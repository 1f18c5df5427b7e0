"""docs/reference/api.md: the schema as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tfgpujob import names
from tfgpujob.api.structural import Schema, is_open
from tfgpujob.names import Role


def reference(about: str, spec: Schema, status: Schema) -> str:
    """Markdown with one table for each object, in the order of the schema."""
    head = f"""# TFGPUJob reference

Generated from the models in `operator/src/tfgpujob/api` by `make crds`; `kubectl explain {names.SHORT_NAME}.spec`
shows the same.

`apiVersion: {names.API_VERSION}`, `kind: {names.KIND}`. {about}

`metadata.name` has at most {names.MAX_NAME_LENGTH} characters: lower-case letters, digits and `-`, beginning with a
letter and ending with a letter or digit.
"""
    lines = [head, *_section("spec", spec), *_section("status", status)]
    return "\n".join(lines).rstrip() + "\n"


def _section(path: str, schema: Schema) -> Iterator[str]:
    yield f"## {path}".replace("<role>", "&lt;role&gt;")
    yield ""
    if "description" in schema:
        yield _text(schema["description"])
        yield ""
    if is_open(schema):
        yield "Only fields that TFGPUJob looks at are listed; all others of Kubernetes' own type may be used."
        yield ""
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        default = "**required**" if name in required else _default(field)
        yield f"| `{name}` | {_type(field)} | {default} | {_text(field['description'])} |"
    yield ""
    for name, below in schema["properties"].items():
        yield from _below(path, name, below)


def _below(path: str, name: str, field: Schema) -> Iterator[str]:
    if path in {"spec.replicaSpecs", "status.replicaStatuses"}:
        if name == Role.WORKER:
            shared = {key: value for key, value in field.items() if key != "description"}
            yield from _section(f"{path}.<role>", shared)
    elif "properties" in field:
        yield from _section(f"{path}.{name}", field)
    elif "properties" in field.get("items", {}):
        yield from _section(f"{path}.{name}[]", field["items"])


def _type(field: Schema) -> str:
    if "enum" in field:
        return " \\| ".join(f"`{choice}`" for choice in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    if "additionalProperties" in field:
        return f"map of {_type(field['additionalProperties'])}"
    return f"{field['type']}{_bounds(field)}"


def _bounds(field: Schema) -> str:
    if field["type"] != "integer":
        return ""
    most = field.get("maximum", 2**31 - 1)
    if most >= 2**31 - 1:
        return f" ≥ {field['minimum']}"
    return f" {field['minimum']}–{most}"


def _default(field: Schema) -> str:
    return f"`{json.dumps(field['default'])}`" if "default" in field else ""


def _text(text: str) -> str:
    """Escapes angle brackets and bars, which are markup in Markdown tables."""
    return text.replace("<", "&lt;").replace("|", "\\|")
