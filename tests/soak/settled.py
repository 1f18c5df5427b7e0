"""Whether what the statuses say, and what there is of pods, is what the operator would have done by now."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from tests.integration.kube import Object
from tests.soak.stand_in import Life

from tfgpujob import names
from tfgpujob.units import counted


def unsettled(lives: Mapping[str, Life], jobs: Sequence[Object], pods: Sequence[Object]) -> list[str]:
    """One line for each job that wants something done."""
    by_job: dict[str, list[Object]] = defaultdict(list)
    for pod in pods:
        by_job[(pod["metadata"].get("labels") or {}).get(names.LABEL_JOB_NAME, "")].append(pod)
    found = []
    for job in jobs:
        name = job["metadata"]["name"]
        problem = next(_problems(lives[name], job.get("status") or {}, by_job[name]), None)
        if problem:
            found.append(f"{name}: {problem}")
    return found


def _problems(life: Life, status: Object, pods: Sequence[Object]) -> Iterator[str]:
    if status.get("phase") == "Succeeded":
        return
    attempt = status.get("attempt")
    if not attempt:
        yield "has no status"
        return
    current = [pod for pod in pods if pod["metadata"]["labels"].get(names.LABEL_ATTEMPT) == str(attempt)]
    phases = Counter(pod["status"].get("phase") for pod in current)
    if phases["Failed"]:
        yield f"a pod of attempt {attempt} has failed"
    if phases["Succeeded"] == life.pods:
        yield "all pods have succeeded"
    if len(current) < len(pods):
        yield f"pods of an attempt before {attempt} are there"
    if len(current) < life.pods and not _waits(status):
        yield f"{counted(life.pods - len(current), 'pod is', 'pods are')} missing"
    if phases["Running"] == life.pods and status.get("phase") != "Running":
        yield f"all pods run, and the phase is {status.get('phase')}"


def _waits(status: Object) -> bool:
    """A restart has its delay."""
    until = (status.get("retry") or {}).get("notBefore")
    return until is not None and datetime.fromisoformat(until) > datetime.now(UTC)
