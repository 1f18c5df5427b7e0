"""A job's spec in the cache: a large one as compact JSON.

As Python objects it takes 12 to 25 times as much: 300 KiB of keys took 3.3 MiB, and 132 accepted jobs filled the
operator's memory. It is decoded when the job is reconciled. Fields that are often read for all jobs are kept beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from tfgpujob.core.observed.snapshot import Object

PACKED: Final = "packedSpec"
_FROM: Final = 1 << 8
"""Bytes of JSON from which on a spec is packed."""
_BESIDE: Final = ("managedBy", "strategy", "runPolicy", "trainer")
_MAX_TEXT: Final = 253
_MAX_KEYS: Final = 64


def packed(job: Object) -> Object:
    """The job with a packed spec, if the spec is large. A packed spec stays packed."""
    try:
        # A copy: orjson's result keeps all that it had reserved, 8 MiB for 19,900 keys.
        text = bytes(memoryview(orjson.dumps(job.get("spec")))) if PACKED not in job else b""
    except TypeError:  # no JSON: not of an API server
        return job
    if len(text) < _FROM:
        return job
    beside = {key: _sketch(job["spec"][key], 1) for key in _BESIDE if key in job["spec"]}
    return {**job, "spec": {key: value for key, value in beside.items() if value is not None}, PACKED: text}


def spec_of(job: Object) -> Any:
    """The whole spec, decoded for each call."""
    return orjson.loads(job[PACKED]) if PACKED in job else job.get("spec")


def size_of(job: Object) -> int:
    """Bytes of its packed spec; of a small one none."""
    return len(job.get(PACKED, b""))


def _sketch(value: Any, levels: int) -> Any:
    """What is small of it; None: it is not."""
    if isinstance(value, Mapping):
        few = list(value.items())[:_MAX_KEYS] if levels else []
        parts = ((key, _sketch(part, levels - 1)) for key, part in few if len(key) <= _MAX_TEXT)
        return {key: part for key, part in parts if part is not None}
    return None if isinstance(value, list) or (isinstance(value, str) and len(value) > _MAX_TEXT) else value
