"""How much memory the specs of a namespace's jobs may take in the cache, and those of all.

A spec is bounded (`api/limits.py`), and so is their sum: else a namespace fills the memory with jobs of which each is
accepted. A job beyond it is refused in words, its pods go on, and it is read once others have gone.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tfgpujob.api.invalid import Invalid

NAMESPACE_BYTES: Final = 32 << 20
"""Of packed specs: a hundred jobs of the largest size, or 10,000 of 3 KiB."""
ALL_BYTES: Final = 96 << 20
FREE_BYTES: Final = 1 << 20
"""That a namespace has whatever the others take."""
_FIX: Final = "delete jobs that have finished (ttlSecondsAfterFinished), or keep such data in a ConfigMap or an image"


class Budget:
    """Who takes how much of it."""

    def __init__(self) -> None:
        self._used = Counter[str]()

    def refusal(self, namespace: str, more: int) -> Invalid | None:
        """Why the budget refuses `more` further bytes; None if they fit."""
        used = self._used[namespace] + more
        if more <= 0 or used <= FREE_BYTES:
            return None
        if used > NAMESPACE_BYTES:
            problem = f"the jobs of namespace {namespace} have more than {NAMESPACE_BYTES >> 20} MiB of specs together"
            return Invalid("spec", problem, _FIX)
        if self._used.total() + more > ALL_BYTES:
            return Invalid("spec", f"all jobs have more than {ALL_BYTES >> 20} MiB of specs together", _FIX)
        return None

    def charge(self, namespace: str, more: int) -> None:
        """`more` may be negative."""
        self._used[namespace] += more
        if not self._used[namespace]:
            del self._used[namespace]
