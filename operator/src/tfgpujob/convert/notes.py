"""Notes about a conversion, and the reader that drops nothing silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Effect(StrEnum):
    """What happened to a field."""

    CHANGED = "changed"
    """The field, or its default, has another meaning here."""
    NO_EFFECT = "no effect"
    """The field is left out: it has no effect here, or had none there."""
    REFUSED = "refused"
    """There is no equivalent TFGPUJob; the user must decide."""
    ADVICE = "advice"
    """The meaning is the same, but there is something better."""


@dataclass(frozen=True, slots=True)
class Note:
    """One remark. `field` is a path in the TFJob; of a refused field that TFJobs don't have, in the TFGPUJob."""

    effect: Effect
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.effect}: {self.field}: {self.text}"


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result for one TFJob."""

    name: str
    """The job's name; empty when it has none."""
    job: dict[str, Any] | None
    """A TFGPUJob that the operator accepts; None when it was refused."""
    notes: tuple[Note, ...]


class Part:
    """A mapping of the TFJob, read key by key. `close` notes the keys that were not read. The mapping is not
    changed.
    """

    def __init__(self, value: Any, path: str, notes: list[Note]) -> None:
        self.path = path
        self.notes = notes
        self.whole = value
        """The mapping as it was given."""
        # YAML allows a number as a key; Kubernetes does not.
        self._value = {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}
        self._left = set(self._value)
        if value is not None and not isinstance(value, Mapping):
            self.note(Effect.REFUSED, "", "is no mapping: give a mapping of keys to values")

    def __contains__(self, key: str) -> bool:
        return self._value.get(key) is not None

    def names(self) -> list[str]:
        """All keys, in their order."""
        return list(self._value)

    def left(self) -> list[str]:
        """The keys that have not been read yet."""
        return [key for key in self.names() if key in self._left]

    def take(self, key: str) -> Any:
        """The value; None when it is absent, or empty, which is noted."""
        if key in self._left and self._value[key] is None:
            self.note(Effect.NO_EFFECT, key, "is empty: as if it were not there")
        self._left.discard(key)
        return self._value.get(key)

    def part(self, key: str) -> Part:
        """The mapping below the key; empty when there is none."""
        return Part(self.take(key), self.at(key), self.notes)

    def move(self, target: dict[str, Any], *keys: str) -> None:
        """Copy these keys unchanged, where they are present."""
        for key in keys:
            value = self.take(key)
            if value is not None:
                target[key] = value

    def drop(self, text: str, *keys: str) -> None:
        """Leave these keys out, with a note that says why."""
        for key in keys:
            if self.take(key) is not None:
                self.note(Effect.NO_EFFECT, key, text)

    def at(self, key: str) -> str:
        """The path of a key, or of this part when it is empty."""
        return f"{self.path}.{key}".strip(".") if key else self.path

    def note(self, effect: Effect, key: str, text: str) -> None:
        self.notes.append(Note(effect, self.at(key), text))

    def close(self) -> None:
        """Note the remaining keys, which a TFJob does not have."""
        self.drop("is no field of a TFJob that has an effect: left out", *self.left())
