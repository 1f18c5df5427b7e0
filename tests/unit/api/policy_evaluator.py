"""A ValidatingAdmissionPolicy, evaluated as an API server does it."""

from __future__ import annotations

from typing import Any

import celpy
import yaml


def _equal(one: Any, other: Any) -> Any:
    """Also for null, which API servers compare with anything and celpy with nothing."""
    if one is None or other is None:
        return celpy.celtypes.BoolType(one is other)
    return celpy.celtypes.BoolType(one == other)


_COMPARED = {"_==_": _equal, "_!=_": lambda one, other: celpy.celtypes.BoolType(not _equal(one, other))}


class Policy:
    """Evaluates it as an API server does, but for costs."""

    def __init__(self, spec: dict[str, Any]) -> None:
        environment = celpy.Environment()
        made = yaml.safe_load(yaml.safe_dump(spec))

        def program(text: str) -> Any:
            return environment.program(environment.compile(text), functions=_COMPARED)

        self._variables = [(each["name"], program(each["expression"])) for each in made["variables"]]
        self._validations = [(each["message"], program(each["expression"])) for each in made["validations"]]

    def refusals(self, obj: Any, **request: Any) -> list[str]:
        known = {"object": celpy.json_to_cel(obj), "variables": celpy.json_to_cel({})}
        known |= {"request": celpy.json_to_cel(request), "oldObject": celpy.json_to_cel(obj)}
        for name, variable in self._variables:
            known["variables"][celpy.celtypes.StringType(name)] = variable.evaluate(known)
        return [message for message, validation in self._validations if not validation.evaluate(known)]
