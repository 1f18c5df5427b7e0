"""Where the time of a step goes: waiting for data, waiting for the all-reduce, and computing. Imports no TensorFlow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_INPUT_BOUND = 0.1
"""Share of the time that is waited for data, from which on something should be done about it."""
_COMMUNICATION_BOUND = 0.25
_WORTH_SAYING_SECONDS = 1.0
_STRAGGLES = 1.3
"""A worker that needs this many times the median is what the others wait for."""
_NOTICEABLE_SECONDS = 0.02
"""And at least so many seconds longer, as in the operator: the shortest steps differ by chance."""
_SMOOTHING = 0.1
_SHOWN = 200
"""So many workers fit into /progress; of more, the slowest are shown."""


_BUCKETS_PER_E = 200
"""Of durations: a bucket is as wide as 0.5 % of what is in it."""


class Durations:
    """Quantiles of any number of durations in bounded memory, each within 0.3 %: from a microsecond to a day there are
    5,000 buckets."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count one."""
        self._buckets[round(math.log(max(seconds, 1e-6)) * _BUCKETS_PER_E)] += 1

    def quantile(self, share: float) -> float:
        """Seconds that so large a share of them did not exceed; 0 if there are none."""
        wanted = share * self._buckets.total()
        for bucket in sorted(self._buckets):
            wanted -= self._buckets[bucket]
            if wanted <= 0:
                return math.exp(bucket / _BUCKETS_PER_E)
        return 0.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step, of which some were waited for data and some spent in the all-reduce."""

    seconds: float
    waited: float
    all_reduce: float

    @property
    def own(self) -> float:
        """What the step takes without the all-reduce, in which a worker waits for the slowest."""
        return max(0.0, self.seconds - self.all_reduce)


@dataclass(slots=True)
class Window:
    """Examples, and the seconds spent in their steps."""

    examples: int = 0
    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    reduced: float = 0.0

    def add(self, examples: int, time: StepTime) -> None:
        """Count one step."""
        self.steps += 1
        self.examples += examples
        self.seconds += time.seconds
        self.waited += time.waited
        self.reduced += min(max(time.all_reduce, 0.0), time.seconds)

    @property
    def rate(self) -> float:
        """Examples per second."""
        return round(self.examples / self.seconds, 1) if self.seconds else 0.0

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step."""
        return _seconds(self.seconds / self.steps) if self.steps else 0.0

    @property
    def input_wait(self) -> float:
        """The share of the time that was spent waiting for input, 0 to 1."""
        return round(self.waited / self.seconds, 3) if self.seconds else 0.0

    @property
    def all_reduce(self) -> float:
        """The share of the time that was spent in the all-reduce, 0 to 1."""
        return round(self.reduced / self.seconds, 3) if self.seconds else 0.0

    @property
    def compute(self) -> float:
        """The rest of the time."""
        return round(max(0.0, 1 - self.input_wait - self.all_reduce), 3)

    @property
    def is_input_bound(self) -> bool:
        """Whether so much time was waited for data that it is worth a sentence."""
        return self.waited >= _WORTH_SAYING_SECONDS and self.input_wait >= _INPUT_BOUND

    @property
    def is_communication_bound(self) -> bool:
        """Whether so much time was spent in the all-reduce that it is worth a sentence."""
        return self.reduced >= _WORTH_SAYING_SECONDS and self.all_reduce >= _COMMUNICATION_BOUND


@dataclass(slots=True)
class WorkerTimes:
    """Seconds that each worker needs for a step without the all-reduce, in whose flags they are sent."""

    names: Sequence[str]
    own: float = 0.0
    """This worker's, smoothed; it goes into the all-reduce of the next step."""
    _reported: Sequence[float] = field(default=())

    @property
    def several(self) -> bool:
        """Whether there is anybody to wait for."""
        return len(self.names) > 1

    def add(self, time: StepTime, reported: Sequence[float], *, counts: bool) -> None:
        """Take the time of a step, and what each replica's worker has reported in its all-reduce."""
        if counts:
            self.own += (time.own - self.own) * (_SMOOTHING if self.own else 1.0)
        self._reported = reported[:: max(1, len(reported) // len(self.names))]

    def seconds(self) -> dict[str, float]:
        """Each worker's seconds, by name; empty as long as somebody's are not known."""
        if not self._reported or min(self._reported) <= 0:
            return {}
        known = sorted(zip(self.names, self._reported, strict=True), key=lambda pair: -pair[1])[:_SHOWN]
        return {name: _seconds(value) for name, value in sorted(known, key=lambda pair: self.names.index(pair[0]))}

    def slowest(self) -> str:
        """`worker-1, which needs 0.05 s of its own for a step, others 0.01 s`; empty if all are about as fast."""
        seconds = self.seconds()
        if not seconds:
            return ""
        name = max(seconds, key=lambda one: seconds[one])
        others = sorted(value for one, value in seconds.items() if one != name)
        median = others[len(others) // 2]
        if seconds[name] < _STRAGGLES * median or seconds[name] - median < _NOTICEABLE_SECONDS:
            return ""
        return f"{name}, which needs {seconds[name]:g} s of its own for a step, others {median:g} s; look at its node"


def _seconds(value: float) -> float:
    return float(f"{value:.3g}")
