"""A round with a failed request is left out of the figures, and measured again; the failure is noted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tests.bench.disturbance import DisturbedError, Noise, NoiseMeter

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
    """`mend` brings back what a round needs, or raises GivenUpError."""

    def __init__(self, diary: Diary, mend: Callable[[], Awaitable[None]], say: Callable[[str], None]) -> None:
        self._diary = diary
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
            meter = NoiseMeter()
            try:
                keep(await measure(kept))
                kept, in_a_row = kept + 1, 0
            except (DisturbedError, ApiError, TimeoutError) as error:
                in_a_row += 1
                self._note(f"{what}, {kept + 1} of {wanted}: {error}")
                await self._mend()
            self._diary.noise.setdefault(what, []).append(meter.read())
            if kept == wanted:
                return
            if in_a_row == IN_A_ROW:
                self._note(f"{what}: disturbed {IN_A_ROW} times in a row, {kept} of {wanted} rounds measured")
                return

    def _note(self, text: str) -> None:
        self._diary.disturbed.append(text)
        self._say(f"disturbed: {text}")
