"""docs/reference/api.md, the schema as tables, and docs/reference/cli.md, the commands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

import click

from tfgpujob import names
from tfgpujob.api.base import PRESERVE
from tfgpujob.api.structural import Schema
from tfgpujob.cli import verbs
from tfgpujob.cli.main import tfgpu
from tfgpujob.exits import Exit
from tfgpujob.names import Role

_HEAD: Final = """# The command line

Generated from the tool by `make crds`. `tfgpu` is also `kubectl tfgpu`. Each command takes `-h`. Colours are shown on a
terminal only, and never with NO_COLOR.
"""


def of_api(about: str, spec: Schema, status: Schema) -> str:
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
    if schema.get(PRESERVE):
        yield "Only fields that TFGPUJob looks at are listed; all others of Kubernetes' own type may be used."
        yield ""
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        given = f"`{json.dumps(field['default'])}`" if "default" in field else ""
        default = "**required**" if name in required else given
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


def _text(text: str) -> str:
    """Escapes angle brackets and bars, which are markup in Markdown tables."""
    return text.replace("<", "&lt;").replace("|", "\\|")


def of_command_line() -> str:
    """The commands as they explain themselves."""
    parts = (line for part in verbs.by_heading().items() for line in _group(*part))
    return "\n".join([_HEAD, *_exit_codes(), *parts])


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n\n| code | meaning |\n|---|---|"
    for code in Exit:
        yield f"| {int(code)} | {code.meaning} |"
    yield ""


def _group(heading: str, its_verbs: Sequence[str]) -> Iterator[str]:
    yield f"## {heading}\n"
    root = click.Context(tfgpu, info_name="tfgpu", **tfgpu.context_settings)
    for verb in its_verbs:
        command = tfgpu.get_command(root, verb)
        assert command is not None
        context = click.Context(command, info_name=verb, parent=root, max_content_width=100, terminal_width=100)
        yield f"### {verb}\n\n```text\n{command.get_help(context)}\n```\n"
