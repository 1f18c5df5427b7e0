"""The verbs of `tfgpu`, one in each file, which has the `click` command `command` and its PLACE in the help.

A file here is a verb; nothing else lists them.
"""

from __future__ import annotations

import importlib
import pkgutil
from enum import StrEnum
from types import ModuleType


class Heading(StrEnum):
    """The parts of `tfgpu --help`, in their order."""

    WITHOUT_A_CLUSTER = "Without a cluster"
    IN_A_CLUSTER = "In a cluster"
    FROM_TFJOB = "Coming from TFJob"
    THIS_TOOL = "This tool"


Place = tuple[Heading, int]
"""The heading of a verb, and a number that orders the verbs below it."""


def names() -> list[str]:
    """Every verb. Imports none, because a verb may import the Kubernetes client."""
    return [module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)]


def module(name: str) -> ModuleType:
    """The module of a verb."""
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


def by_heading() -> dict[Heading, list[str]]:
    """All verbs in the order of the help. Imports them."""
    placed: list[tuple[Place, str]] = sorted((module(name).PLACE, name) for name in names())
    return {heading: [name for (its, _), name in placed if its is heading] for heading in Heading}
