"""Limits on the memory that authors of jobs can fill in the cache, per namespace and in total: with specs, with texts
in pods and in status, and with what the pods answer.

A single one is bounded (`api/limits.py`, `trim.py`); without a bound on the sum a namespace could fill the memory with
accepted jobs. A job beyond the limit is refused with a message. Its pods continue, and its spec is read once others are
gone. Texts beyond it are cut, and answers are not kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from tfgpujob.api.invalid import Invalid

NAMESPACE_BYTES: Final = 32 << 20
"""For packed specs: a hundred jobs of the largest size, or 10,000 of 3 KiB."""
ALL_BYTES: Final = 96 << 20
FREE_BYTES: Final = 1 << 20
"""What each namespace can use, whatever the others use."""
_WHAT: Final = "specs, messages and reports together"
_FIX: Final = "delete jobs that have finished (ttlSecondsAfterFinished), or keep such data in a ConfigMap or an image"


class Budget:
    """Bytes in use, by namespace and by what takes them."""

    def __init__(self) -> None:
        self._used = Counter[str]()
        self._charged: defaultdict[str, dict[tuple[str, str], int]] = defaultdict(dict)

    def charge(self, namespace: str, what: tuple[str, str], size: int) -> Invalid | None:
        """Count `size` bytes for this part of an object, by part and name, in place of those before. If the budget
        refuses them, why, and none are counted: the caller keeps less.
        """
        if not size and (namespace not in self._charged or what not in self._charged[namespace]):
            return None
        before = self._charged[namespace].pop(what, 0)
        self._used[namespace] -= before
        refusal = self._refusal(namespace, size) if size > before else None
        if size and refusal is None:
            self._charged[namespace][what] = size
            self._used[namespace] += size
        if not self._used[namespace]:
            self.release(namespace)
        return refusal

    def release(self, namespace: str) -> None:
        """Count nothing for this namespace."""
        self._used.pop(namespace, None)
        self._charged.pop(namespace, None)

    def _refusal(self, namespace: str, more: int) -> Invalid | None:
        used = self._used[namespace] + more
        if used <= FREE_BYTES:
            return None
        if used > NAMESPACE_BYTES:
            problem = f"the jobs of namespace {namespace} have more than {NAMESPACE_BYTES >> 20} MiB of {_WHAT}"
            return Invalid("spec", problem, _FIX)
        if self._used.total() + more > ALL_BYTES:
            return Invalid("spec", f"all jobs have more than {ALL_BYTES >> 20} MiB of {_WHAT}", _FIX)
        return None
