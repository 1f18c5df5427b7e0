"""What reads the inputs of strangers: each target feeds one kind of them to it, beside good neighbours.

A target raises if an input harms anybody but its owner.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import orjson
from tests import linear
from tests.harness import sizes
from tests.harness.fuzz_inputs import REPORT, SPEC, TFJOB, Json, Mutator, job_of, pod_of
from tests.harness.known import snapshot_of
from tests.harness.promises import bounds
from tests.harness.steps import HELD_SECONDS

import tfgpujob_contract
from tfgpujob import convert, core
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.core import reconcile
from tfgpujob.core.observed import progress_report, trim
from tfgpujob.core.observed.packed import spec_of
from tfgpujob.core.observed.plan import resolve
from tfgpujob.core.observed.snapshot import Config, Kind
from tfgpujob.core.pods.dropped_fields import dropped_fields
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.core.status import diagnosis
from tfgpujob.kube import decoding
from tfgpujob.kube.interface import ListPage
from tfgpujob.shell import resync, watch_answer
from tfgpujob.shell.store import Key, Store

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = Config(operator_image="o:1", trainer_image="t:1", operator_version="1")
MAX_KEPT = 600 << 10
"""Bytes of one job in the cache, as JSON."""
MAX_STATUS = 64 << 10


class _Pages:
    """A cluster that answers one list with these bytes."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    async def list(self, *_: object, **__: object) -> ListPage:
        return ListPage.of(decoding.decoded(self._payload))


def listed(into: Store, kind: Kind, payload: bytes) -> None:
    cluster: Any = _Pages(payload)
    syncing = resync.Resync(cluster, into, lambda _: None, namespaces=(), random=lambda: 0.5)
    asyncio.run(syncing.list(kind, None))


def _reconciled(held: Store, name: str) -> Any:
    snapshot = held.snapshot(Key("ns", name))
    if snapshot is None:
        return None
    outcome = reconcile.reconcile(snapshot, NOW, CONFIG)
    update = reconcile.finalize_status(snapshot, outcome, (), NOW, CONFIG)
    status = update.status or outcome.intent or outcome.status
    size = len(orjson.dumps(status))
    assert size <= MAX_STATUS, f"a status of {size} bytes"
    return status


def expect_neighbours(held: Store, *names: str) -> None:
    for name in names:
        assert spec_of(snapshot_of(held, Key("ns", name)).job) == SPEC, f"{name} is seen otherwise"
        assert _reconciled(held, name)["phase"] == "Starting", f"{name} does not start"


def jobs(mutator: Mutator) -> None:
    """A page of jobs, one of them a stranger's."""
    strange = job_of("strange", mutator.spoilt({"spec": SPEC}).get("spec"))
    strange["metadata"] = mutator.spoilt({"annotations": {"a": "b"}, "labels": {"c": "d"}}) | strange["metadata"]
    nameless = mutator.spoilt({"metadata": {"name": "n", "uid": "u"}}) if mutator.chance.random() < 0.1 else None
    items = [job_of("first"), strange, *([nameless] if nameless is not None else []), job_of("last")]
    held = Store()
    listed(held, Kind.JOB, mutator.text({"items": items, "metadata": {"resourceVersion": "9"}}))
    expect_neighbours(held, "first", "last")
    _reconciled(held, "strange")
    snapshot = held.snapshot(Key("ns", "strange"))
    kept = len(orjson.dumps(snapshot.job, default=bytes.decode)) if snapshot is not None else 0
    assert kept <= MAX_KEPT, f"{kept} bytes are kept of one job"


def events(mutator: Mutator) -> None:
    """Events of jobs, as kopf's decoder reads them."""
    line = mutator.text({"type": "MODIFIED", "object": job_of("strange", mutator.spoilt({"spec": SPEC}).get("spec"))})
    plain = watch_answer._plain(line)
    assert plain, "the event is lost"
    Store().put(Kind.JOB, json.loads(plain)["object"])
    watch_answer._plain(mutator.text(mutator.spoilt({"type": "ADDED", "object": job_of("strange")})))


def pods(mutator: Mutator) -> None:
    """A page of pods, one of them with a status or labels of a stranger's making."""
    strange, good = pod_of("strange-worker-0", "strange"), pod_of("good-worker-0", "good")
    strange["status"] = mutator.spoilt({"status": strange["status"]}).get("status")
    strange["metadata"] |= mutator.spoilt({key: strange["metadata"][key] for key in ("labels", "ownerReferences")})
    held = Store()
    for name in ("strange", "good"):
        held.put(Kind.JOB, _started(name))
    listed(held, Kind.POD, mutator.text({"items": [strange, good], "metadata": {"resourceVersion": "9"}}))
    assert [pod.name for pod in held.pods(Key("ns", "good"))] == ["good-worker-0"], "a neighbour's pod"
    for pod in held.pods(Key("ns", "strange")):
        texts = (pod.phase, pod.status_reason, pod.waiting_reason, pod.waiting_message)
        assert max(len(text) for text in (*texts, pod.termination.message if pod.termination else "")) <= trim.MAX_TEXT
    _reconciled(held, "strange")


def _started(name: str) -> Json:
    job = job_of(name)
    spec = parse_job(job)
    assert isinstance(spec, JobSpec)
    status = {"phase": "Running", "attempt": 1, "plan": resolve(spec, CONFIG).to_status(), "conditions": []}
    return {**job, "status": status}


def answers(mutator: Mutator) -> None:
    """What a pod answers when it is asked how far it is."""
    report = progress_report.parse(mutator.text(mutator.spoilt(REPORT)))
    if report is None:
        return
    held, pod = Store(), pod_of("strange-worker-0", "strange")
    pod["status"] = {"phase": "Running", "podIP": "10.0.0.1"}
    held.put(Kind.JOB, _started("strange"))
    held.put(Kind.POD, pod)
    held.store_report(Key("ns", "strange"), pod["metadata"]["uid"], report)
    _reconciled(held, "strange")


def pods_made(mutator: Mutator) -> None:
    """No accepted spec becomes a pod with power over its node."""
    # As read by an API server, which gives every part of a template a depth that Python can follow.
    written = mutator.spoilt({"spec": SPEC}, most=1, danger=0.9).get("spec")
    kept = trim.trim_job(decoding.decoded(mutator.text(job_of("strange", written))))
    job = {**kept, "spec": spec_of(kept)}
    spec = parse_job(job) if "unreadable" not in job else None
    if not isinstance(spec, JobSpec):
        return
    plan = resolve(spec, CONFIG)
    for role, index in plan.members.pods[:4]:
        made = build_pod(job, spec, plan, Replica(role, index, 1))
        orjson.dumps(made)
        _expect_harmless(made["spec"])


def _expect_harmless(spec: Json) -> None:
    assert not {"hostNetwork", "hostPID", "nodeName"} & {key for key, value in spec.items() if value}, "the pod"
    assert not any("hostPath" in volume for volume in _objects(spec.get("volumes"))), "a volume"
    for container in (
        c for kind in ("containers", "initContainers", "ephemeralContainers") for c in _objects(spec.get(kind))
    ):
        context = container.get("securityContext") or {}
        assert context.get("privileged") is not True, "privileged"
        assert context.get("procMount") != "Unmasked", "/proc"
        assert not any(port.get("hostPort") == 80 for port in _objects(container.get("ports"))), "a port"


def _objects(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def tfjobs(mutator: Mutator) -> None:
    """Files of `tfgpu convert`."""
    convert.convert(decoding.decoded(mutator.text(mutator.spoilt(TFJOB))))


def large(mutator: Mutator) -> None:
    """A job that is valid and as large as it may be, or about so."""
    template = sizes.TEMPLATES[mutator.chance.choice([*sizes.TEMPLATES])]
    whole = sizes.job_of(template(int(10 ** mutator.chance.uniform(2, 4.3))), mutator.chance.choice((1, 32, 512)))
    held = Store()
    _in_time(held.put, Kind.JOB, decoding.decoded(orjson.dumps(whole)))
    snapshot = snapshot_of(held, Key("default", "train"))
    outcome = _in_time(reconcile.reconcile, snapshot, NOW, CONFIG)
    _in_time(reconcile.finalize_status, snapshot, outcome, (), NOW, CONFIG)
    if "unreadable" not in snapshot.job:
        assert not [*bounds.too_heavy(snapshot.job, outcome)]
    if outcome.creates:
        made = orjson.loads(orjson.dumps(_in_time(lambda: outcome.creates[-1].body)))
        _in_time(dropped_fields, made, _without(made, mutator.chance.choice(("value", "key", "name", "a"))), "spec")


def said(mutator: Mutator) -> None:
    """Last words against every pattern: what it is made of, again and again."""
    pattern = mutator.chance.choice(_patterns())
    before, seed = mutator.chance.choice(sorted(linear._seeds(pattern)))
    text = (before + seed * 4096)[:4096]
    _in_time(diagnosis.diagnose, "Error", mutator.chance.choice((1, 135, 163, 200, None)), text, 20)
    pod = pod_of("strange-worker-0", "strange")
    ended = {"exitCode": 1, "reason": "Error", "message": text}
    pod["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "tensorflow", "state": {"terminated": ended}}],
        "initContainerStatuses": [{"name": "tfgpu-code", "state": {"terminated": ended}}],
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}],
    }
    held = Store()
    held.put(Kind.JOB, _started("strange"))
    _in_time(held.put, Kind.POD, pod)
    _in_time(_reconciled, held, "strange")
    _in_time(progress_report.parse, text.encode())


@cache
def _patterns() -> list[re.Pattern[Any]]:
    return [
        p
        for name, p in sorted((linear.patterns(core) | linear.patterns(tfgpujob_contract)).items())
        if isinstance(p.pattern, str)
    ]


def _in_time(do: Callable[..., Any], *arguments: Any) -> Any:
    began = time.thread_time()
    found = do(*arguments)
    if time.thread_time() - began > HELD_SECONDS:
        problem = bounds.too_slow(do, *arguments)
        assert not problem, problem
    return found


def _without(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {k: _without(v, key) for k, v in value.items() if k != key}
    return [_without(v, key) for v in value] if isinstance(value, list) else value


Target = Callable[[Mutator], None]
TARGETS: tuple[Target, ...] = (jobs, events, pods, answers, pods_made, tfjobs, large, said)
