"""A job as it was last seen, as bytes of limited size. Pure.

Values of environment variables are not kept: they may be passwords, and a record lives longer than its job.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from tfgpujob.core.observed import progress_series
from tfgpujob.core.observed.packed import spec_of
from tfgpujob.core.observed.snapshot import Object, Pod
from tfgpujob.core.status.builder import timestamp
from tfgpujob.names import GONE
from tfgpujob_contract.pod import MAX_SERIES

MAX_BYTES: Final = 256 << 10
"""JSON of a record. A larger job is kept without its spec, or else only with its outcome."""
MAX_CURVES: Final = MAX_SERIES
MOST_LOGS: Final = 8
"""Replicas whose last lines are kept: failed ones first."""
_NOT_KEPT: Final = "(not kept)"
_MAX_TEXT: Final = 253
_OUTCOME: Final = ("phase", "conditions", "lastFailure", "attempt", "restarts", "goodput", "gpuTime")
_SUMMARY: Final = ("strategy", "image")


@dataclass(frozen=True, slots=True)
class Last:
    """A job and its pods at one time. Nothing of it is ever changed in place, so a thread may read it."""

    job: Object
    pods: Sequence[Pod]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A row of the database."""

    uid: str
    namespace: str
    name: str
    created: str
    seen: int
    """Seconds since 1970."""
    content: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """What a record says."""

    job: Object
    logs: Mapping[str, Sequence[str]]


def freeze(last: Last) -> Record:
    """The record of a job."""
    metadata = last.job["metadata"]
    return Record(
        uid=_text(metadata["uid"]),
        namespace=_text(metadata["namespace"]),
        name=_text(metadata["name"]),
        created=_text(metadata.get("creationTimestamp") or timestamp(last.at)),
        seen=int(last.at.timestamp()),
        content=zlib.compress(_content(last)),
    )


def thaw(content: bytes, seen: int) -> Kept:
    """Raises ValueError for what is no record."""
    try:
        found = orjson.loads(_inflated(content, MAX_BYTES))
        job = {**found["job"], GONE: timestamp(datetime.fromtimestamp(seen, UTC))}
        return Kept(job, found["logs"])
    except (zlib.error, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"no record: {error}") from error


def freeze_curves(answer: bytes) -> bytes:
    """A trainer's answer, as it is: who reads it checks it."""
    return zlib.compress(answer[:MAX_CURVES])


def thaw_curves(content: bytes) -> progress_series.Series:
    """Empty for what is none."""
    try:
        return progress_series.parse(_inflated(content, MAX_CURVES)) or {}
    except zlib.error:
        return {}


def _inflated(content: bytes, most: int) -> bytes:
    return zlib.decompressobj().decompress(content, most)


def _content(last: Last) -> bytes:
    """The first that is small enough."""
    candidates = ({"job": job, "logs": logs} for job, logs in _candidates(last))
    return next(text for text in map(_json, candidates) if len(text) <= MAX_BYTES)


def _candidates(last: Last) -> Iterator[tuple[Object, Mapping[str, Sequence[str]]]]:
    job = {key: last.job[key] for key in ("apiVersion", "kind") if key in last.job}
    job["metadata"] = {key: value for key, value in last.job["metadata"].items() if key != "deletionTimestamp"}
    job["metadata"].setdefault("creationTimestamp", timestamp(last.at))
    spec, status, logs = spec_of(last.job), last.job.get("status") or {}, dict(_logs(last.pods))
    yield {**job, "spec": _without_values(spec), "status": status}, logs
    short = {key: _text(spec[key]) for key in _SUMMARY if key in spec} if isinstance(spec, Mapping) else {}
    yield {**job, "spec": short, "status": status}, logs
    outcome = {key: status[key] for key in _OUTCOME if key in status}
    yield {**job, "spec": short, "status": outcome}, {}
    metadata = {key: _text(job["metadata"][key]) for key in ("name", "namespace", "uid", "creationTimestamp")}
    yield {**job, "metadata": metadata, "spec": {}, "status": {"phase": _text(status.get("phase"))}}, {}


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate, or a number that is too large
        return b" " * (MAX_BYTES + 1)


def _without_values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _hidden(part) if key == "env" else _without_values(part) for key, part in value.items()}
    return [_without_values(part) for part in value] if isinstance(value, list) else value


def _hidden(variables: Any) -> Any:
    if not isinstance(variables, list):
        return _NOT_KEPT
    return [
        {key: _NOT_KEPT if key == "value" else part for key, part in one.items()} if isinstance(one, Mapping) else one
        for one in variables
    ]


def _logs(pods: Iterable[Pod]) -> Iterator[tuple[str, Sequence[str]]]:
    """Termination messages: without another one, the kubelet takes the last lines of the log of a failed container."""
    ended = [(pod.name, pod.termination) for pod in pods if pod.termination is not None and pod.termination.message]
    ended.sort(key=lambda one: not one[1].exit_code)
    for name, termination in ended[:MOST_LOGS]:
        yield name, _lines(termination.message)


def _lines(message: str) -> Sequence[str]:
    """The bundled trainer's message is JSON and has the last lines of its log."""
    try:
        told = orjson.loads(message)
    except ValueError:
        told = None
    found = told.get("lastLines") if isinstance(told, dict) else None
    return [str(line) for line in found] if isinstance(found, list) else message.splitlines()


def _text(value: object) -> str:
    """A text that any database takes."""
    return str(value).encode("utf-8", "replace").decode().replace("\0", "")[:_MAX_TEXT]
