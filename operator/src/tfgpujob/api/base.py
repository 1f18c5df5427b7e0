"""What all models of the API share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

PRESERVE = "x-kubernetes-preserve-unknown-fields"


def value_at(value: Any, *keys: str) -> Any:
    """The value below these keys of something that a user wrote; None if it is absent, or not below mappings."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


class Model(BaseModel):
    """Frozen, and strict: "2" is not a number, and an unknown key is an error.

    Attributes are snake_case, the YAML is camelCase. Attribute docstrings become the descriptions that
    `kubectl explain` shows.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _no_null(cls, data: Any) -> Any:
        """A key without a value is an unfinished line, and an error. The CRD refuses it too."""
        if isinstance(data, dict) and None in data.values():
            for name, field in cls.model_fields.items():
                key = field.alias or name
                if key in data and data[key] is None:
                    raise PydanticCustomError("empty", "{key} is empty", {"key": key})
        return data


class OpenModel(Model):
    """Part of a Kubernetes object: only the fields that rules read are declared, the rest is kept as given."""

    model_config = ConfigDict(extra="allow", json_schema_extra={PRESERVE: True})


class StatusModel(Model):
    """Written by the operator, read back by the operator and by clients."""


_QUANTITY = re.compile(
    r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+(?![A-Za-z]))?)([KMGTPE]i|[numkMGTPE])?", re.ASCII
)
_UNITS = {unit: 1024.0**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_UNITS |= {unit: 1000.0**power for power, unit in enumerate("num", -3)}
_UNITS |= {unit: 1000.0**power for power, unit in enumerate("kMGTPE", 1)}


def is_quantity(value: Any) -> bool:
    """True if the API server takes it for a quantity. Its numbers may have a fraction."""
    if isinstance(value, str):
        return _QUANTITY.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def quantity(text: str) -> float:
    """A Kubernetes quantity as a number: cores or bytes. 0 for what is none."""
    found = _QUANTITY.fullmatch(text)
    return float(found[1]) * _UNITS.get(found[2], 1.0) if found else 0.0


def _quantity(value: Any) -> Any:
    if isinstance(value, float) or not is_quantity(value):
        raise PydanticCustomError("quantity", "not a quantity")
    return value


Quantity = Annotated[Any, BeforeValidator(_quantity), WithJsonSchema({"x-kubernetes-int-or-string": True})]
"""A Kubernetes quantity: 500m, 2, 16Gi."""

Positive = Annotated[int, Field(ge=1, le=MAX_INT32)]
NotNegative = Annotated[int, Field(ge=0, le=MAX_INT32)]
Positive64 = Annotated[int, Field(ge=1, le=MAX_INT64)]
NotNegative64 = Annotated[int, Field(ge=0, le=MAX_INT64)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""The name of another object in the job's namespace."""
Text = Annotated[str, Field(min_length=1, max_length=1024)]
Controller = Annotated[
    str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]
"""Name of a controller, as of a Job's managedBy: domain/name."""
