"""The parsed spec of a job, cached: parsing costs more than the rest of a reconcile."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from tfgpujob.api import JobSpec, parse_job
from tfgpujob.core.observed.packed import PACKED, spec_of
from tfgpujob.core.observed.snapshot import Config, Object
from tfgpujob.core.observed.unserved import unserved
from tfgpujob.names import Condition

CACHED_JOBS: Final = 256
"""Jobs whose last result is cached: about as many as are reconciled within the same few seconds."""
CACHED_BYTES: Final = 1 << 20
"""Bytes of packed specs, each of which may take 25 when parsed."""


def parsed_spec(job: Object, config: Config) -> JobSpec | str:
    """The spec, or what is wrong with it."""
    if problem := job.get("unreadable"):
        return str(problem)
    metadata, spec = job["metadata"], job.get(PACKED, job.get("spec"))
    accepted = is_accepted(job)
    key = (metadata.get("uid"), metadata.get("generation"), metadata["namespace"], metadata["name"], config, accepted)
    known = _results.get(key)
    if known is not None and known[0] == spec:
        return known[1]
    found = _parse(job, config, accepted=accepted)
    _results[key] = (spec, found)
    _results.move_to_end(key)
    if len(_results) > CACHED_JOBS:
        _results.popitem(last=False)
    while isinstance(spec, bytes) and len(_results) > 1 and sum(map(_size, _results.values())) > CACHED_BYTES:
        _results.popitem(last=False)
    return found


def _size(result: tuple[Any, JobSpec | str]) -> int:
    return len(result[0]) if isinstance(result[0], bytes) else 0


_results: OrderedDict[object, tuple[Any, JobSpec | str]] = OrderedDict()
"""A cache of a pure function: equal arguments give equal results."""


def allows_host(namespace: str, config: Config) -> bool:
    return bool({namespace, "*"} & config.allow_host_namespaces)


def is_accepted(job: Object) -> bool:
    """True if this generation of the spec was accepted: an upgrade of the operator must not refuse a running job."""
    generation = job["metadata"].get("generation")
    return any(
        c["type"] == Condition.ACCEPTED and c["status"] == "True" and c.get("observedGeneration") == generation
        for c in (job.get("status") or {}).get("conditions") or ()
    )


def _parse(job: Object, config: Config, *, accepted: bool) -> JobSpec | str:
    namespace = job["metadata"]["namespace"]
    accounts = None
    if config.allowed_service_accounts:
        named = (account.split("/", 1) for account in config.allowed_service_accounts)
        accounts = frozenset(name for where, name in named if where in {namespace, "*"})
    parsed = parse_job(
        {**job, "spec": spec_of(job)},
        allow_host=allows_host(namespace, config),
        allowed_service_accounts=accounts,
        restricted=config.restricted,
        accepted=accepted,
    )
    if not isinstance(parsed, JobSpec):
        return "; ".join(str(invalid) for invalid in parsed)
    missing = None if accepted else next(unserved(parsed, config), None)
    return str(missing) if missing else parsed
