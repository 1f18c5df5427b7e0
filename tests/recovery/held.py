"""What supervisors, warm and training processes hold: no more after many kills than after few."""

from __future__ import annotations

from collections.abc import Mapping

from tests.endurance.bounds import LEAST, Flat, WarmUp
from tests.endurance.sampling import ProcessTree, Recorder

_WARM_UP = WarmUp(share=0.2)
_BOUNDS = {
    # A pool of TensorFlow's that has just started may not have all of its threads.
    "threads": Flat(warm_up=_WARM_UP, slack=4),
    "descriptors": Flat(warm_up=_WARM_UP),
    "processes": Flat(warm_up=_WARM_UP),
    "rss": Flat(warm_up=_WARM_UP, ratio=1.02, slack=4 << 20, unit="bytes"),
}


class Held:
    """Samples of supervisors and what comes from them. `supervisors`: process ids by the name of the task."""

    def __init__(self, supervisors: Mapping[str, int]) -> None:
        self._recorder = Recorder([ProcessTree(name, pid) for name, pid in supervisors.items()])

    def sample(self) -> None:
        """Once for each kill, when all train again."""
        self._recorder.sample()

    def grown(self) -> list[str] | None:
        """What has grown, and processes with too few samples; None after too few kills to decide."""
        if len(_WARM_UP.after(self._recorder.series[("machine", "load")])) < 3 * LEAST:
            return None
        judged = ((key, bound.judge(self._recorder.series[key])) for key, bound in self._judged())
        return [f"{subject}: {name} {found.problem}" for (subject, name), found in judged if found.problem]

    def _judged(self) -> list[tuple[tuple[str, str], Flat]]:
        return [(key, _BOUNDS[key[1]]) for key in self._recorder.series if key[1] in _BOUNDS]
