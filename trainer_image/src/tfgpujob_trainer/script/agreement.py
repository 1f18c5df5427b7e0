"""Checks that all workers of a script make the same calls. If they differ, all end, with each one's call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.script.callbacks import that_may_train, that_train
from tfgpujob_trainer.script.place import place_in

_MAY_DIFFER = ("self", "x", "y", "verbose", "return_dict")
"""Arguments that may differ between workers; whether the rows are the same is checked when they are read."""


class Agreement:
    """Compares the next call of each worker."""

    def __init__(self, peers: Peers, names: Sequence[str], script: Path) -> None:
        """`names`: of all workers, in their order."""
        self._peers, self._names, self._script = peers, names, script

    def __call__(self, does: str) -> None:
        """Return when every worker has made the same call; raises ConfigError on each if one differs."""
        found = self._peers.differing(does)
        if not found:
            return
        self._peers.barrier_before_exit()
        if not all(text and text.isprintable() for text in found):  # the numbers of a step, added to the texts
            raise ConfigError(
                f"one worker {does}, and another is within a step", "leave fit() after the same batch on every worker"
            )
        raise ConfigError(
            self._by_worker(found),
            "let every worker make the same calls of fit() and evaluate(), with the same arguments and callbacks",
        )

    def on_call(self, name: str, arguments: Mapping[str, Any]) -> None:
        """The same before a call of fit() or evaluate()."""
        if self._peers.workers > 1:
            self(f"calls {name}(){place_in(self._script)}{_described(arguments)}")

    def on_callbacks(self, callbacks: Any) -> set[str]:
        """The classes of a fit()'s callbacks of which not all workers have as many, which is logged: these may only
        observe.
        """
        found = [text.split() for text in self._peers.differing(" ".join(that_may_train(callbacks)))]
        if found:
            texts = [f"has the callbacks {', '.join(names)}" if names else "has no callbacks" for names in found]
            say(f"{self._by_worker(texts)}: what changes the training must be on every worker")
        return {name for one in map(Counter, found) for other in map(Counter, found) for name in one - other}

    def _by_worker(self, texts: Sequence[str]) -> str:
        """`worker 0 …, worker 1 …`, with the first worker of each text."""
        first: dict[str, str] = {}
        for name, text in zip(self._names, texts, strict=True):
            first.setdefault(text, name.replace("-", " "))
        return ", ".join(f"{name} {text}" for text, name in first.items())


def _described(arguments: Mapping[str, Any]) -> str:
    """` with epochs=3, validation_data, EarlyStopping`."""
    said = []
    for key, value in arguments.items():
        if key == "callbacks":
            said += that_train(value)
        elif key not in _MAY_DIFFER and value is not None:
            said.append(f"{key}={value}" if isinstance(value, Number | Mapping) else key)
    return f" with {', '.join(said)}" if said else ""
