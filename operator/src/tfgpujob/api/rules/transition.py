"""What an edit may not change. Only an API server with CEL sees both versions; the operator sees what it has begun."""

from __future__ import annotations

from typing import Final

from tfgpujob.api.rules.rule import Cel
from tfgpujob.names import CONTROLLER


def _manager(version: str) -> str:
    field = f"{version}.runPolicy.managedBy"
    return f"(has({version}.runPolicy) && has({field}) ? {field} : '{CONTROLLER}')"


MANAGED_BY: Final = (
    "can't be changed: two controllers would have the same pods; restore it, or delete the job and create it anew"
)
TRANSITIONS: Final = (
    Cel(
        at="spec", rule=f"{_manager('self')} == {_manager('oldSelf')}", field="runPolicy.managedBy", message=MANAGED_BY
    ),
)
