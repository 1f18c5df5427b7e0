"""The parsed spec of a job. Parsing costs more than the rest of a look, and a job is looked at often."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from tfgpujob.api import JobSpec, parse_job
from tfgpujob.core.snapshot import Config, Object

REMEMBERED: Final = 256
"""Jobs of which the last result is kept: about as many as are looked at within the same few seconds."""


def parsed_spec(job: Object, config: Config) -> JobSpec | str:
    """The spec, or what is wrong with it."""
    metadata, spec = job["metadata"], job.get("spec")
    key = (metadata.get("uid"), metadata.get("generation"), metadata["namespace"], metadata["name"], config)
    known = _results.get(key)
    if known is not None and known[0] == spec:
        return known[1]
    found = _parse(job, config)
    _results[key] = (spec, found)
    _results.move_to_end(key)
    if len(_results) > REMEMBERED:
        _results.popitem(last=False)
    return found


_results: OrderedDict[object, tuple[Any, JobSpec | str]] = OrderedDict()
"""Equal arguments give equal results, so nobody can tell that they are remembered."""


def _parse(job: Object, config: Config) -> JobSpec | str:
    namespace = job["metadata"]["namespace"]
    allow_host = bool({namespace, "*"} & config.allow_host_namespaces)
    accounts = None
    if config.allowed_service_accounts:
        prefix = f"{namespace}/"
        accounts = frozenset(a.removeprefix(prefix) for a in config.allowed_service_accounts if a.startswith(prefix))
    parsed = parse_job(job, allow_host=allow_host, allowed_service_accounts=accounts)
    return parsed if isinstance(parsed, JobSpec) else "; ".join(str(invalid) for invalid in parsed)
