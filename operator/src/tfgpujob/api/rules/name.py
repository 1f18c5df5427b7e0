"""metadata.name: pods and the service are named after the job, and a service's name is a DNS label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Cel, NameRule
from tfgpujob.names import MAX_NAME_LENGTH, NAME, NAME_PATTERN

_FIELD = "metadata.name"
_START_WITH = (
    "begin with a lower-case letter, then use lower-case letters, digits and -, and end with a letter or digit"
)
_RENDER = "fill in the template first, such as by helm template or envsubst"
_SHORTER = f"use at most {MAX_NAME_LENGTH} characters, so that pod names stay within Kubernetes' 63"


def _present(metadata: Mapping[str, Any]) -> Iterator[Invalid]:
    if not isinstance(metadata.get("name"), str) or not metadata["name"]:
        yield Invalid(_FIELD, "is missing", "give the job a name")


def _pattern(metadata: Mapping[str, Any]) -> Iterator[Invalid]:
    name = metadata.get("name")
    if isinstance(name, str) and name and not NAME.fullmatch(name):
        is_template = "{{" in name or "$" in name
        yield Invalid(_FIELD, f"{name!r} is not a valid name", _RENDER if is_template else _START_WITH)


def _length(metadata: Mapping[str, Any]) -> Iterator[Invalid]:
    name = metadata.get("name")
    if isinstance(name, str) and len(name) > MAX_NAME_LENGTH:
        yield Invalid(_FIELD, f"is {len(name)} characters long", _SHORTER)


RULES: tuple[NameRule, ...] = (
    NameRule("name.present", _present, only_python="the API server itself insists on a name"),
    NameRule(
        "name.pattern",
        _pattern,
        cel=(
            Cel(
                at="",
                rule=f"self.metadata.name.matches('{NAME_PATTERN}')",
                message=f"metadata.name: is not a valid name; {_START_WITH}",
            ),
        ),
    ),
    NameRule(
        "name.length",
        _length,
        cel=(
            Cel(
                at="",
                rule=f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
                message=f"metadata.name: is too long; {_SHORTER}",
            ),
        ),
    ),
)
