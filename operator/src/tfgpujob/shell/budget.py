"""Limits on the memory that specs of jobs and messages of pods take in the cache, per namespace and in total.

A single one is bounded (`api/limits.py`); without a bound on the sum a namespace could fill the memory with accepted
jobs. A job beyond the limit is refused with a message. Its pods continue, and its spec is read once others are gone.
Messages beyond it are cut.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tfgpujob.api.invalid import Invalid

NAMESPACE_BYTES: Final = 32 << 20
"""For packed specs: a hundred jobs of the largest size, or 10,000 of 3 KiB."""
ALL_BYTES: Final = 96 << 20
FREE_BYTES: Final = 1 << 20
"""What each namespace can use, whatever the others use."""
_WHAT: Final = "specs and messages together"
_FIX: Final = "delete jobs that have finished (ttlSecondsAfterFinished), or keep such data in a ConfigMap or an image"


class Budget:
    """Bytes in use, by namespace."""

    def __init__(self) -> None:
        self._used = Counter[str]()

    def refusal(self, namespace: str, more: int) -> Invalid | None:
        """Why the budget refuses `more` further bytes; None if they fit."""
        used = self._used[namespace] + more
        if more <= 0 or used <= FREE_BYTES:
            return None
        if used > NAMESPACE_BYTES:
            problem = f"the jobs of namespace {namespace} have more than {NAMESPACE_BYTES >> 20} MiB of {_WHAT}"
            return Invalid("spec", problem, _FIX)
        if self._used.total() + more > ALL_BYTES:
            return Invalid("spec", f"all jobs have more than {ALL_BYTES >> 20} MiB of {_WHAT}", _FIX)
        return None

    def charge(self, namespace: str, more: int) -> None:
        """`more` may be negative."""
        self._used[namespace] += more
        if not self._used[namespace]:
            del self._used[namespace]
