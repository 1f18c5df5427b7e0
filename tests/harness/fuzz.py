"""What strangers write, by chance along the structure of good objects: `python -m tests.harness.fuzz --seconds 600`.

A seed gives the same inputs again. Each target feeds one kind of input to the code that reads it, beside good
neighbours, and raises if it harms anybody but its owner. Planted bugs, each of which must be found, come first.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import orjson
from tests.harness.poison import ODD, POISONS

from tfgpujob import convert
from tfgpujob.api import JobSpec, parse_job
from tfgpujob.api.rules import host
from tfgpujob.core import reconcile
from tfgpujob.core.observed import progress_report, trim
from tfgpujob.core.observed.plan import resolve
from tfgpujob.core.observed.snapshot import Config, Kind
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.kube import decoding
from tfgpujob.kube.interface import ListPage
from tfgpujob.shell import resync, store, watch_answer
from tfgpujob.shell.store import Key, Store

Json = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = Config(operator_image="o:1", trainer_image="t:1", operator_version="1")
MAX_KEPT = 600 << 10
"""Bytes of one job in the cache, as JSON."""
MAX_STATUS = 64 << 10

_TEMPLATE: Json = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {
        "containers": [
            {
                "name": "tensorflow",
                "image": "a:1",
                "env": [{"name": "A", "value": "b"}],
                "ports": [{"name": "web", "containerPort": 80}],
                "resources": {"limits": {"nvidia.com/gpu": 1}, "claims": []},
                "securityContext": {"capabilities": {"add": ["CHOWN"]}, "runAsUser": 1},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }
        ],
        "initContainers": [{"name": "i", "image": "i:1"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "securityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]},
        "tolerations": [{"operator": "Exists"}],
    },
}
_SPEC: Json = {
    "strategy": "MultiWorkerMirrored",
    "replicaSpecs": {"worker": {"replicas": 2, "gpus": 1, "template": _TEMPLATE}, "evaluator": {"replicas": 1}},
    "trainer": {"entrypoint": "m", "globalBatchSize": 64, "epochs": 1, "params": {"a": [1, {"b": 2.5}]}},
    "gpu": {"resourceName": "nvidia.com/gpu", "memory": {"growth": True}},
    "runPolicy": {"backoffLimit": 3, "schedulingPolicy": {"priorityClass": "high"}, "cleanPodPolicy": "All"},
}
_POD_STATUS: Json = {
    "phase": "Failed",
    "podIP": "10.0.0.1",
    "startTime": "2026-01-01T00:00:00Z",
    "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:01Z"}],
    "containerStatuses": [
        {
            "name": "tensorflow",
            "ready": False,
            "state": {"terminated": {"exitCode": 1, "message": "m", "finishedAt": "2026-01-01T00:00:02Z"}},
        }
    ],
    "initContainerStatuses": [{"name": "tfgpu-peer-gate", "state": {"waiting": {"reason": "x", "message": "y"}}}],
}
_REPORT: Json = {
    "phase": "training",
    "step": 5,
    "steps": 10,
    "loss": 0.5,
    "stepSeconds": 0.1,
    "workerSeconds": {"worker-0": 0.1},
    "gpuMemoryMiB": [1],
    "lastCheckpoint": {"step": 4, "directory": "/output/a", "time": "2026-01-01T00:00:00Z"},
}
_TFJOB: Json = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "TFJob",
    "metadata": {"name": "old", "namespace": "ns"},
    "spec": {
        "runPolicy": {"cleanPodPolicy": "Running", "schedulingPolicy": {"queue": "q"}},
        "tfReplicaSpecs": {"Worker": {"replicas": 2, "restartPolicy": "OnFailure", "template": _TEMPLATE}},
    },
}
_DANGEROUS: tuple[tuple[str, str, Any], ...] = (
    ("volumes", "hostPath", {"path": "/"}),
    ("securityContext", "privileged", True),
    ("securityContext", "procMount", "Unmasked"),
    ("spec", "hostNetwork", True),
    ("spec", "hostPID", True),
    ("spec", "nodeName", "node-1"),
    ("ports", "hostPort", 80),
)
"""What gives a pod power over its node: below which key, and what is written there."""


class Mutator:
    """Changes parts of JSON values. Deterministic for a seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._raw = {f"@{name}@": text for name, text in (POISONS | ODD).items()}

    def spoilt(self, good: Any, most: int = 4) -> Any:
        value = copy.deepcopy(good)
        for _ in range(self._chance.randint(1, most)):
            if places := list(_places(value)):
                self._change(*self._chance.choice(places))
        if self._chance.random() < 0.3:
            self._endanger(value)
        return value

    def text(self, value: Any) -> bytes:
        """As an API server would write it, and as none would."""
        text = json.dumps(value)
        for placeholder, raw in self._raw.items():
            text = text.replace(json.dumps(placeholder), raw)
        return text.encode("latin-1")

    def _change(self, parent: Any, key: Any) -> None:
        match self._chance.randrange(8):
            case 0 | 1 | 2:
                parent[key] = self._odd()
            case 3:
                del parent[key]
            case 4:
                parent[key] = self._chance.choice([[parent[key]], {"a": parent[key]}, [parent[key]] * 50])
            case 5 if isinstance(parent, dict):
                parent[self._chance.choice(["", "a", "x" * 300, "\0", "é", "tfgpu.dev/job-name"])] = parent[key]
            case _ if isinstance(parent, dict):
                parent["more"] = self._odd()

    def _endanger(self, value: Any) -> None:
        where, name, said = self._chance.choice(_DANGEROUS)
        places = [parent[key] for parent, key in _places(value) if key == where]
        found = [item for place in places for item in (place if isinstance(place, list) else [place])]
        if objects := [item for item in found if isinstance(item, dict)]:
            self._chance.choice(objects)[name] = copy.deepcopy(said)

    def _odd(self) -> Any:
        chance = self._chance
        simple = [None, True, False, 0, -1, 2**31, 2**63, -(2**63), 1e308, 0.5, "", " ", "\0", "é🙂", "x" * 5000]
        shapes: list[Any] = [[], {}, [None], [[]], {"": None}, {"a": {"b": []}}, ["tensorflow"], "1" * 4400]
        return chance.choice([chance.choice(simple), chance.choice(shapes), chance.choice(list(self._raw))])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(items):
        yield value, key
        yield from _places(child)


def _job(name: str, spec: Any = None, **metadata: Any) -> Json:
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "5", "generation": 1, **metadata}
    return {
        "apiVersion": "tfgpu.dev/v1alpha1",
        "kind": "TFGPUJob",
        "metadata": meta,
        "spec": copy.deepcopy(_SPEC) if spec is None else spec,
    }


def _pod(name: str, job: str) -> Json:
    owner = {
        "apiVersion": "tfgpu.dev/v1alpha1",
        "kind": "TFGPUJob",
        "name": job,
        "uid": f"uid-{job}",
        "controller": True,
    }
    labels = {"job-name": job, "replica-type": "worker", "replica-index": "0", "attempt": "1", "replica-restart": "0"}
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "resourceVersion": "5",
        "labels": {f"tfgpu.dev/{key}": value for key, value in labels.items()},
        "ownerReferences": [owner],
        "managedFields": [{"time": "2026-01-01T00:00:00Z"}],
    }
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": copy.deepcopy(_POD_STATUS)}


class _Pages:
    """A cluster that answers one list with these bytes."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    async def list(self, *_: object, **__: object) -> ListPage:
        return ListPage.of(decoding.decoded(self._payload))


def _listed(into: Store, kind: Kind, payload: bytes) -> None:
    cluster: Any = _Pages(payload)
    syncing = resync.Resync(cluster, into, lambda _: None, namespaces=(), random=lambda: 0.5)
    asyncio.run(syncing.list(kind, None))


def _reconciled(held: Store, name: str) -> Any:
    snapshot = held.snapshot(Key("ns", name))
    if snapshot.job is None:
        return None
    outcome = reconcile.reconcile(snapshot, NOW, CONFIG)
    update = reconcile.finalize_status(snapshot, outcome, (), NOW, CONFIG)
    status = update.status or outcome.intent or outcome.status
    size = len(orjson.dumps(status))
    assert size <= MAX_STATUS, f"a status of {size} bytes"
    return status


def _expect_neighbours(held: Store, *names: str) -> None:
    for name in names:
        job = held.snapshot(Key("ns", name)).job
        assert job is not None, f"{name} is not seen"
        assert job["spec"] == _SPEC, f"{name} is seen otherwise"
        assert _reconciled(held, name)["phase"] == "Starting", f"{name} does not start"


def jobs(mutator: Mutator) -> None:
    """A page of jobs, one of them a stranger's."""
    strange = _job("strange", mutator.spoilt({"spec": _SPEC}).get("spec"))
    strange["metadata"] = mutator.spoilt({"annotations": {"a": "b"}, "labels": {"c": "d"}}) | strange["metadata"]
    nameless = mutator.spoilt({"metadata": {"name": "n", "uid": "u"}}) if mutator._chance.random() < 0.1 else None
    items = [_job("first"), strange, *([nameless] if nameless is not None else []), _job("last")]
    held = Store()
    _listed(held, Kind.JOB, mutator.text({"items": items, "metadata": {"resourceVersion": "9"}}))
    _expect_neighbours(held, "first", "last")
    _reconciled(held, "strange")
    kept = len(orjson.dumps(held.snapshot(Key("ns", "strange")).job))
    assert kept <= MAX_KEPT, f"{kept} bytes are kept of one job"


def events(mutator: Mutator) -> None:
    """Events of jobs, as kopf's decoder reads them."""
    line = mutator.text({"type": "MODIFIED", "object": _job("strange", mutator.spoilt({"spec": _SPEC}).get("spec"))})
    plain = watch_answer._plain(line)
    assert plain, "the event is lost"
    Store().put(Kind.JOB, json.loads(plain)["object"])
    watch_answer._plain(mutator.text(mutator.spoilt({"type": "ADDED", "object": _job("strange")})))


def pods(mutator: Mutator) -> None:
    """A page of pods, one of them with a status or labels of a stranger's making."""
    strange, good = _pod("strange-worker-0", "strange"), _pod("good-worker-0", "good")
    strange["status"] = mutator.spoilt({"status": strange["status"]}).get("status")
    strange["metadata"] |= mutator.spoilt({key: strange["metadata"][key] for key in ("labels", "ownerReferences")})
    held = Store()
    for name in ("strange", "good"):
        held.put(Kind.JOB, _started(name))
    _listed(held, Kind.POD, mutator.text({"items": [strange, good], "metadata": {"resourceVersion": "9"}}))
    assert [pod.name for pod in held.snapshot(Key("ns", "good")).pods] == ["good-worker-0"], "a neighbour's pod"
    for pod in held.snapshot(Key("ns", "strange")).pods:
        texts = (pod.phase, pod.status_reason, pod.waiting_reason, pod.waiting_message)
        assert max(len(text) for text in (*texts, pod.termination.message if pod.termination else "")) <= trim.MAX_TEXT
    _reconciled(held, "strange")


def _started(name: str) -> Json:
    job = _job(name)
    spec = parse_job(job)
    assert isinstance(spec, JobSpec)
    status = {"phase": "Running", "attempt": 1, "plan": resolve(spec, CONFIG).to_status(), "conditions": []}
    return {**job, "status": status}


def answers(mutator: Mutator) -> None:
    """What a pod answers when it is asked how far it is."""
    report = progress_report.parse(mutator.text(mutator.spoilt(_REPORT)))
    if report is None:
        return
    held, pod = Store(), _pod("strange-worker-0", "strange")
    pod["status"] = {"phase": "Running", "podIP": "10.0.0.1"}
    held.put(Kind.JOB, _started("strange"))
    held.put(Kind.POD, pod)
    held.store_report(Key("ns", "strange"), pod["metadata"]["uid"], report)
    _reconciled(held, "strange")


def pods_made(mutator: Mutator) -> None:
    """No accepted spec becomes a pod with power over its node."""
    # As read by an API server, which gives every part of a template a depth that Python can follow.
    job = trim.trim_job(decoding.decoded(mutator.text(_job("strange", mutator.spoilt({"spec": _SPEC}).get("spec")))))
    spec = parse_job(job) if "unreadable" not in job else None
    if not isinstance(spec, JobSpec):
        return
    plan = resolve(spec, CONFIG)
    for role, index in plan.pods()[:4]:
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
    convert.convert(decoding.decoded(mutator.text(mutator.spoilt(_TFJOB))))


Target = Callable[[Mutator], None]
TARGETS: tuple[Target, ...] = (jobs, events, pods, answers, pods_made, tfjobs)


@dataclass(frozen=True, slots=True)
class Finding:
    target: str
    seed: int
    error: str


def run(target: Target, seed: int) -> Finding | None:
    try:
        target(Mutator(random.Random(seed)))
    except Exception as error:  # whatever it is, a stranger has caused it
        return Finding(target.__name__, seed, f"{type(error).__name__}: {error!s:.300}")
    return None


@dataclass(frozen=True, slots=True)
class Planted:
    name: str
    where: tuple[Any, str]
    bug: Any
    target: Target

    @contextmanager
    def there(self) -> Iterator[None]:
        with patch.object(*self.where, self.bug):
            yield


def _put_that_raises(held: Store, kind: Kind, obj: Any, of: Key | None = None) -> Key | None:
    return held._put(kind, obj, of)


BUGS: tuple[Planted, ...] = (
    Planted("read a page as a whole or not at all", (decoding, "decoded"), orjson.loads, jobs),
    Planted("keep a spec whatever its size", (trim, "too_large"), lambda _: None, jobs),
    Planted("take every item for an object", (resync, "_has_identity"), lambda _: True, jobs),
    Planted("let kopf read what was written", (watch_answer, "trim_job"), lambda job: job, events),
    Planted("lose an event that is too deep", (watch_answer, "decoded"), orjson.loads, events),
    Planted("end with the first odd pod", (store.Store, "put"), _put_that_raises, pods),
    Planted("keep a message whatever its length", (trim, "_text"), lambda value: str(value or ""), pods),
    Planted(
        "trust an answer",
        (progress_report, "parse"),
        lambda payload: progress_report.Report.model_validate(json.loads(payload)),
        answers,
    ),
    Planted(
        "forget the host's files",
        (host, "CONTROLS"),
        tuple(control for control in host.CONTROLS if control.name != "host path"),
        pods_made,
    ),
    Planted(
        "forget privileged containers",
        (host, "CONTROLS"),
        tuple(control for control in host.CONTROLS if control.name != "privileged"),
        pods_made,
    ),
    Planted(
        "trust runPolicy to be an object",
        (reconcile, "is_ours"),
        lambda job: ((job.get("spec") or {}).get("runPolicy") or {}).get("managedBy") is None,
        jobs,
    ),
)


def found_after(bug: Planted, most: int) -> int | None:
    """After how many inputs the planted bug is found; None: not within `most`."""
    with bug.there():
        return next((seed + 1 for seed in range(most) if run(bug.target, seed) is not None), None)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.harness.fuzz")
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=1_000_000)
    given = arguments.parse_args()
    logging.disable(logging.CRITICAL)
    missed = 0
    for bug in BUGS:
        after = found_after(bug, 3000)
        missed += after is None
        print(f"{bug.name:40} {'NOT FOUND' if after is None else f'found after {after} inputs'}")
    began, count, findings = time.monotonic(), 0, list[Finding]()
    while time.monotonic() - began < given.seconds:
        for target in TARGETS:
            finding = run(target, given.seed + count)
            if finding is not None:
                findings.append(finding)
                print(finding)
            count += 1
    seconds = time.monotonic() - began
    ok = not findings and not missed
    told = {"ok": ok, "inputs": count, "seconds": round(seconds), "findings": len(findings)}
    print(json.dumps({**told, "planted": len(BUGS), "found": len(BUGS) - missed}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
