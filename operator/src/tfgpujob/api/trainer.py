"""spec.trainer: a model for each dataclass of the contract, with its bounds, defaults and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, SerializationInfo, create_model
from pydantic_core import CoreSchema, core_schema

from tfgpujob.api.base import PRESERVE, Model
from tfgpujob_contract import trainer_config
from tfgpujob_contract.trainer_config import TrainerConfig, to_json

_OF_JSON: Final[Mapping[Any, Any]] = {tuple: list, Mapping: dict}


class _Part(Model):
    model_config = ConfigDict(use_attribute_docstrings=False)  # they are the dataclasses'


@cache
def model_of(part: Any) -> type[Model]:
    """The model that validates such a part of spec.trainer."""
    types, described = typing.get_type_hints(part, include_extras=True), _docstrings()[part.__name__]
    fields: dict[str, Any] = {
        field.name: (_type(types[field.name]), Field(**_default(field), description=described[field.name]))
        for field in dataclasses.fields(part)
    }
    made: type[Model] = create_model(part.__name__, __base__=_Part, __doc__=part.__doc__, **fields)
    return made


def _type(annotation: Any) -> Any:
    """The type in a model: JSON's lists and mappings, models, and pydantic's form of bounds."""
    kind, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return model_of(annotation)
    if kind is Annotated:
        return Annotated[_type(arguments[0]), *(Field(**bounds._asdict()) for bounds in arguments[1:])]
    if annotation == Mapping[str, Any]:
        return Annotated[dict[str, Any], Field(json_schema_extra={PRESERVE: True})]
    if kind in _OF_JSON:
        return _OF_JSON[kind][tuple(_type(one) for one in arguments if one is not ...)]
    return _type(arguments[0]) | None if NoneType in arguments else annotation


def _default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    if field.default_factory is not dataclasses.MISSING:
        make = field.default_factory
        return {"default_factory": model_of(make) if dataclasses.is_dataclass(make) else make}
    return {} if field.default is dataclasses.MISSING else {"default": field.default}


@cache
def _docstrings() -> Mapping[str, Mapping[str, str]]:
    """By class and field."""
    classes = (node for node in ast.parse(inspect.getsource(trainer_config)).body if isinstance(node, ast.ClassDef))
    return {
        node.name: {
            field.target.id: text.value.value
            for field, text in zip(node.body, node.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        }
        for node in classes
    }


def _built(value: Any) -> Any:
    """The dataclass of a validated model, or of what is in it."""
    if isinstance(value, Model):
        made = getattr(trainer_config, type(value).__name__)
        return made(**{name: _built(getattr(value, name)) for name in type(value).model_fields})
    return tuple(value) if isinstance(value, list) else value


def _dumped(value: TrainerConfig, info: SerializationInfo) -> Any:
    return to_json(value, _differs if info.exclude_defaults else lambda *_: True)


def _differs(field: dataclasses.Field[Any], value: Any) -> bool:
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return bool(value != default)


class _ByModel:
    """As pydantic's ValidateAs, which would also make a schema of the dataclass and take twice the time."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        form = core_schema.plain_serializer_function_ser_schema(_dumped, info_arg=True)
        model = handler.generate_schema(model_of(source))
        return core_schema.no_info_after_validator_function(_built, model, serialization=form)


Trainer = Annotated[TrainerConfig, _ByModel()]
