"""What the time of a step is spent on: waiting for data, waiting for the all-reduce, and computing. Does not import
TensorFlow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_INPUT_BOUND = 0.1
"""Share of the time spent waiting for data, from which on advice is given."""
_COMMUNICATION_BOUND = 0.25
_WORTH_SAYING_SECONDS = 1.0
_STRAGGLES = 1.3
"""A worker whose step takes this multiple of the median is the one that the others wait for."""
_NOTICEABLE_SECONDS = 0.02
"""And at least this many seconds more, as in the operator: the shortest steps differ by chance."""
_SMOOTHING = 0.1
_SHOWN = 200
"""Number of workers that fit into /progress; of more, the slowest are shown."""


_BUCKETS_PER_E = 200
"""Buckets of durations: each is as wide as 0.5 % of its values."""


class Durations:
    """Quantiles of any number of durations in bounded memory, each within 0.3 %: from a microsecond to a day there are
    5,000 buckets."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Add one."""
        self._buckets[round(math.log(max(seconds, 1e-6)) * _BUCKETS_PER_E)] += 1

    def quantile(self, share: float) -> float:
        """The duration that this share of them did not exceed; 0 if there are none."""
        wanted = share * self._buckets.total()
        for bucket in sorted(self._buckets):
            wanted -= self._buckets[bucket]
            if wanted <= 0:
                return math.exp(bucket / _BUCKETS_PER_E)
        return 0.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step, including those spent waiting for data and in the all-reduce."""

    seconds: float
    waited: float
    all_reduce: float

    @property
    def own(self) -> float:
        """The step's seconds without the all-reduce, in which a worker waits for the slowest."""
        return max(0.0, self.seconds - self.all_reduce)


@dataclass(slots=True)
class Window:
    """Examples, and the seconds of their steps."""

    examples: int = 0
    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    reduced: float = 0.0

    def add(self, examples: int, time: StepTime) -> None:
        """Add one step."""
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
        """True if the wait for data deserves advice."""
        return self.waited >= _WORTH_SAYING_SECONDS and self.input_wait >= _INPUT_BOUND

    @property
    def is_communication_bound(self) -> bool:
        """True if the all-reduce deserves advice."""
        return self.reduced >= _WORTH_SAYING_SECONDS and self.all_reduce >= _COMMUNICATION_BOUND


@dataclass(slots=True)
class WorkerTimes:
    """Seconds that each worker needs for a step without the all-reduce. They are sent in its flags."""

    names: Sequence[str]
    own: float = 0.0
    """This worker's, smoothed; the next step's all-reduce sends it."""
    _reported: Sequence[float] = field(default=())

    @property
    def several(self) -> bool:
        """True if there are other workers."""
        return len(self.names) > 1

    def add(self, time: StepTime, reported: Sequence[float], *, counts: bool) -> None:
        """Add the time of a step, and what each replica's worker has reported in its all-reduce."""
        if counts:
            self.own += (time.own - self.own) * (_SMOOTHING if self.own else 1.0)
        self._reported = reported[:: max(1, len(reported) // len(self.names))]

    def seconds(self) -> dict[str, float]:
        """Each worker's seconds, by name; empty until all are known."""
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
