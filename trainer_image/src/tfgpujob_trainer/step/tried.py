"""Steps that are tried on some rows before they train, and again when what they read has changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any


class Tried(ABC):
    """What SynchronousSteps and OwnSteps share."""

    notes: list[str]
    _begin: Callable[[], None]
    """Makes the functions of the steps, which are traced when they are called."""
    _places: Sequence[Any] = ()
    """The rows that the training was tried on."""

    @abstractmethod
    def try_on(self, places: Sequence[Any], *, training: bool = True) -> None:
        """Find how replicas share the steps, or evaluations, from rows of several places of the data."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop the trial of the training."""

    @abstractmethod
    def _fitted(self) -> list[str]:
        """Run the trials with the values of now; what is new to say of them."""

    @abstractmethod
    def _found(self) -> Any:
        """What the graphs of the steps depend on."""

    def try_again(self, *, trace: bool) -> list[str]:
        """Fit the steps to the values of now; what is new to say of them. `trace`: trace the training step again, with
        the current Python values.
        """
        if trace:
            before, self.notes = self.notes, []
            self._forget()
            self._begin()
            self.try_on(self._places)
            return [note for note in self.notes if note not in before]
        found = self._found()
        notes = self._fitted()
        if self._found() != found:
            self._begin()
        return notes
