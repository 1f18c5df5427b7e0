"""A round that was disturbed is left out of the figures, and measured again; who disturbed it is noted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from tests.bench.disturbance import DisturbedError, Noise, NoiseMeter, Surroundings

from tfgpujob.kube.errors import ApiError

T = TypeVar("T")
IN_A_ROW = 3
"""After this many disturbed rounds in a row the measurement is given up: the disturbance will not end by itself."""


class GivenUpError(Exception):
    """Nothing more can be measured. The message says why."""


@dataclass
class Diary:
    """What happened beside the figures."""

    disturbed: list[str] = field(default_factory=list)
    """The round, and what was in the way."""
    noise: dict[str, list[Noise]] = field(default_factory=dict)
    """Noise of each round, by what it measured; disturbed ones are included."""


class Rounds:
    """`look` says what the surroundings are; `mend` brings back what a round needs, or raises GivenUpError."""

    def __init__(
        self,
        diary: Diary,
        look: Callable[[], Awaitable[Surroundings]],
        mend: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        self._diary = diary
        self._look = look
        self._mend = mend
        self._say = say

    async def repeat(
        self, what: str, wanted: int, measure: Callable[[int], Awaitable[T]], keep: Callable[[T], None]
    ) -> None:
        """Measures until this many rounds were undisturbed, in at most twice as many; only those are kept.

        `measure` gets the number of the round, from 0. Raises GivenUpError.
        """
        kept = in_a_row = 0
        for _ in range(max(IN_A_ROW, 2 * wanted)):
            values = await self._once(what, f"{what}, {kept + 1} of {wanted}", partial(measure, kept))
            if not values:
                in_a_row += 1
                if in_a_row == IN_A_ROW:
                    self._note(f"{what}: disturbed {IN_A_ROW} times in a row, {kept} of {wanted} rounds measured")
                    return
                continue
            keep(*values)
            kept, in_a_row = kept + 1, 0
            if kept == wanted:
                return

    async def _once(self, what: str, label: str, measure: Callable[[], Awaitable[T]]) -> list[T]:
        """The value; nothing when it was disturbed."""
        meter, before, values, reasons = NoiseMeter(), None, list[T](), list[str]()
        try:
            before = await self._look()
            values = [await measure()]
        except (DisturbedError, ApiError, TimeoutError) as error:
            reasons.append(str(error))
        try:
            if before is not None:
                reasons += before.changes(await self._look())
        except (DisturbedError, ApiError) as error:
            reasons.append(str(error))
        reasons = list(dict.fromkeys(reasons))
        self._diary.noise.setdefault(what, []).append(meter.read())
        if not reasons:
            return values
        self._note(f"{label}: {'; '.join(reasons)}")
        await self._mend()
        return []

    def _note(self, text: str) -> None:
        self._diary.disturbed.append(text)
        self._say(f"disturbed: {text}")
