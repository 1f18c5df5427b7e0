"""Edits that are refused. Only an API server with CEL sees the old and the new version; the operator sees the attempt
that it has started.
"""

from __future__ import annotations

from typing import Final

from tfgpujob.api.rules.rule import Cel
from tfgpujob.names import CONTROLLER


def _manager(version: str) -> str:
    field, older = f"{version}.managedBy", f"{version}.runPolicy.managedBy"
    nested = f"has({version}.runPolicy) && has({older}) ? {older} : '{CONTROLLER}'"
    return f"(has({field}) ? {field} : {nested})"


MANAGED_BY: Final = (
    "can't be changed: two controllers would have the same pods; restore it, or delete the job and create it again"
)
TRANSITIONS: Final = (
    Cel(at="spec", rule=f"{_manager('self')} == {_manager('oldSelf')}", field="managedBy", message=MANAGED_BY),
)
