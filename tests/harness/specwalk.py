"""Every field of the CRD through its edge values: accepted and right, or refused with a condition.

The schema only says where the fields are: values go to the operator unchecked, because a server may hold an older
CRD than the operator expects. An exception inside the operator, a job without a word, or a pod that is not what
its job allows is a finding.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

from tests.harness import canonical, vtime
from tests.harness.canonical import tf_config
from tests.harness.driver import differences
from tests.harness.faults import Injector
from tests.harness.feed import Blindfold
from tests.harness.promises.intent import is_over
from tests.harness.resources import Object, controller
from tests.harness.scenario import NAMESPACE
from tests.harness.world import Complaints, World

from tfgpujob import names
from tfgpujob.api.crd import spec_schema
from tfgpujob.names import Role

Path = tuple[str, ...]
"""Keys from spec down; `[]` is the only item of a list, `{}` the key of a map."""

SECONDS = 2.0
EDITED_SECONDS = 60.0
REFUSALS = {"QuotaExceeded", "Forbidden", "TemplateRefused", "NameTaken", "WaitingForOldPods"}
STRINGS = (
    "",
    " ",
    "a",
    "A",
    "a" * 63,
    "a" * 64,
    "a" * 253,
    "a" * 254,
    "a" * 20_000,
    "größe-模型-🙂",
    "a.b",
    "-a",
    "a/b",
    "a/b/c",
    "a:b@sha256:0",
    "../../etc/passwd",
    "$(TF_CONFIG)",
    "$$(HOME) ${HOME} `id`; rm -rf /",
    "a\nb: c",
    '"}],"x":[{',
    "{{ .Values.x }}",
    "\x00",
    "null",
    "true",
    "0",
    "tensorflow",
    "nvidia.com/gpu",
    "tfgpu.dev/job-name",
    "tfgpu-config",
)
NUMBERS = (-1, 0, 1, 2, 3, 513, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 1.5, float("inf"))
OTHERS: tuple[Any, ...] = (None, True, False, [], [None], ["a", "a"], [[]], {}, {"a": {}}, {"": ""}, {"a" * 300: "b"})
ENVS: tuple[Any, ...] = (
    [{"name": "TF_CONFIG", "value": "{}"}],
    [{"name": "TFGPU_ATTEMPT", "value": "99"}, {"name": "TFGPU_ATTEMPT", "value": "98"}],
    [{"name": "A", "value": 1}],
    [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    [{"name": "A", "value": "$(TF_CONFIG)"}],
)
LABELS: tuple[Any, ...] = (
    {names.LABEL_JOB_NAME: "other"},
    {names.LABEL_REPLICA_INDEX: "7", names.LABEL_ATTEMPT: "9"},
    {"a": "b" * 64},
    {"a": 1},
)
SPECIAL: Mapping[str, tuple[Any, ...]] = {
    "env": ENVS,
    "labels": LABELS,
    "annotations": ({names.ANNOTATION_TRAINER_CONFIG: "{}"}, {"a": "b" * 300_000}),
    "volumes": ([{"name": "tfgpu-output", "emptyDir": {}}], [{"name": "v", "hostPath": {"path": "/"}}]),
    "containers": (
        [{"name": "sidecar", "image": "x:1"}],
        [{"name": "tensorflow"}, {"name": "tensorflow"}],
        [{"name": "tensorflow", "ports": [{"containerPort": 2222, "hostPort": 2222}]}],
        [{"name": "tensorflow", "resources": {"limits": {"nvidia.com/gpu": "7"}}}],
        [{"name": "tensorflow", "volumeMounts": [{"name": "nowhere", "mountPath": "/output"}]}],
    ),
    "minResources": ({"cpu": 1}, {"cpu": "a"}, {"nvidia.com/gpu": "1"}),
    "steps": ([1, 2], [2, 1], [0, 1]),
}
_CONTAINER = {"name": "tensorflow", "image": "example.com/train:1"}
_TRAINER = {"entrypoint": "main:train", "globalBatchSize": 32, "epochs": 1}
_FOUR_TIMES = ("chief", "ps", "evaluator")


def walk(schema: Mapping[str, Any] | None = None, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every field with its schema. Templates are walked once, for the worker: they are the same for all roles."""
    schema = spec_schema() if schema is None else schema
    for name, below in schema.get("properties", {}).items():
        yield (*path, name), below
        if name != "template" or path[-1] not in _FOUR_TIMES:
            yield from walk(below, (*path, name))
    for field, key in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(field), dict):
            yield (*path, key), schema[field]
            yield from walk(schema[field], (*path, key))


def values(path: Path, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Edge values of any type: a wrong type is an edge too."""
    yield from STRINGS
    yield from NUMBERS
    yield from OTHERS
    yield from SPECIAL.get(path[-1], ())
    yield from schema.get("enum", ())
    for bound in ("minimum", "maximum"):
        if bound in schema:
            yield from (schema[bound] - 1, schema[bound], schema[bound] + 1)


def base(path: Path) -> Object:
    """A valid spec in which that field may stand."""
    spec: Object = {"strategy": "MultiWorkerMirrored", "replicaSpecs": {"worker": {"replicas": 2}}}
    if path[0] == "trainer":
        return {**spec, "trainer": _TRAINER}
    if path[:2] in (("replicaSpecs", "ps"), ("replicaSpecs", "chief")):
        spec = {"strategy": "ParameterServer", "replicaSpecs": {"chief": {}, "worker": {}, "ps": {}}}
    return {**spec, "image": "example.com/train:1"}


def put(value: Any, path: Path, inside: Any) -> Any:
    """A copy of `inside` with the value at that path."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if key == "[]":
        first = inside[0] if isinstance(inside, list) and inside else dict(_CONTAINER)
        return [put(value, rest, first)]
    if key == "{}":
        return {"key": put(value, rest, {})}
    inside = inside if isinstance(inside, dict) else {}
    return {**inside, key: put(value, rest, inside.get(key))}


def problems(path: Path, value: Any) -> list[str]:
    """What is wrong after the operator has seen a job with this value there."""
    spec = put(value, path, base(path))
    return vtime.run(_look(spec))


async def _look(spec: Any) -> list[str]:
    world = World({}, Injector(), Blindfold())
    world.work = 1000.0
    complaints = Complaints(world).attach()
    try:
        world.spawn("operator-a")
        await asyncio.sleep(0.1)
        body = {"metadata": {"name": "train"}, "spec": spec}
        job = world.server.create(names.KIND, NAMESPACE, body, by="user")
        await asyncio.sleep(SECONDS)
        found = list(_wrong(world, world.server.get(names.KIND, NAMESPACE, "train"), job["metadata"]["uid"]))
        writes = [write for write in world.injector.writes if write.kind != "Lease"]
        if len(writes) > 60 + 2 * len(world.pods("train")):
            found.append(f"hot_loop: {len(writes)} writes in {SECONDS} s")
        return found + world.complaints + world.promises.broken
    finally:
        complaints.detach()


def changed_by_return(path: Path, value: Any) -> list[str]:
    """What differs when a job that trains was given this value, and its old one back, from one that never changed. A
    value that ends the job can't be taken back."""
    spec = base(path)
    edited = vtime.run(_after_edits(spec, (put(value, path, spec), spec)))
    found = [] if edited is None else differences(_unchanged(json.dumps(spec)), edited)
    return [f"not as before: {line}" for line in found if not _GOES_ON.search(line)]


_GOES_ON = re.compile("/observedGeneration|/status/(progress|lastCheckpoint)")


@cache
def _unchanged(spec: str) -> Mapping[str, Any]:
    state = vtime.run(_after_edits(json.loads(spec), ()))
    assert state is not None
    return state


async def _after_edits(spec: Object, edits: Sequence[Object]) -> Mapping[str, Any] | None:
    """The state after the job trained with each spec for a while; None: it ended."""
    world = World(dict.fromkeys(Role, (None,)), Injector(), Blindfold())
    complaints = Complaints(world).attach()
    try:
        world.spawn("operator-a")
        await asyncio.sleep(0.1)
        world.server.create(names.KIND, NAMESPACE, {"metadata": {"name": "train"}, "spec": spec}, by="user")
        await asyncio.sleep(EDITED_SECONDS)
        for edit in edits:
            job = world.server.get(names.KIND, NAMESPACE, "train")
            world.server.replace(names.KIND, NAMESPACE, {**job, "spec": edit}, by="user")
            await asyncio.sleep(EDITED_SECONDS)
            if is_over(world.server.get(names.KIND, NAMESPACE, "train")):
                return None
    finally:
        complaints.detach()
    broken = world.complaints + world.promises.broken
    return {**canonical.state(world.server), **({"broken": broken} if broken else {})}


def _wrong(world: World, job: Object, uid: str) -> Iterator[str]:
    spec = job["spec"] if isinstance(job["spec"], dict) else {}
    given = spec.get("runPolicy")
    policy = given if isinstance(given, dict) else {}
    managers = [m for m in (spec.get("managedBy"), policy.get("managedBy")) if isinstance(m, str)]
    # A longer text is no name: the job is refused.
    if any(m not in ("", names.CONTROLLER) and len(m) <= 253 for m in managers):
        if job.get("status") or world.pods("train"):
            yield "managed_by: another controller's job was touched"
        return
    conditions = {c["type"]: c for c in (job.get("status") or {}).get("conditions") or ()}
    accepted = conditions.get("Accepted")
    if accepted is None:
        yield "silence: there is no Accepted condition"
    elif accepted["status"] == "False":
        if not accepted["message"].startswith(("spec", "metadata")):
            yield f"refusal: {accepted['message'][:200]!r} names no field"
        if world.pods("train"):
            yield "refusal: pods were created all the same"
    else:
        yield from _accepted(world, job, conditions, uid)


def _accepted(world: World, job: Object, conditions: Mapping[str, Any], uid: str) -> Iterator[str]:
    created = conditions.get("Created") or {}
    pods = world.pods("train")
    failed = conditions.get("Failed", {}).get("status") == "True"
    if created.get("status") == "False" and created["reason"] in REFUSALS:
        return
    if conditions.get("Suspended", {}).get("status") == "True" or failed:
        return
    counts = (job["status"].get("plan") or {}).get("counts") or {}
    if len(pods) != sum(counts.values()) or not pods:
        yield f"pods: {len(pods)} instead of {counts}; Created is {created.get('status')} {created.get('reason')}"
    for pod in pods:
        yield from _pod(pod, uid)


def _pod(pod: Object, uid: str) -> Iterator[str]:
    meta, spec = pod["metadata"], pod["spec"]
    name = meta["name"]
    labels = meta["labels"]
    owner = controller(pod)
    wanted = f"train-{labels[names.LABEL_REPLICA_TYPE]}-{labels[names.LABEL_REPLICA_INDEX]}"
    if name != wanted or owner is None or owner["uid"] != uid or labels[names.LABEL_JOB_NAME] != "train":
        yield f"pod: {name} is labelled {labels}"
    if (spec.get("restartPolicy"), spec.get("hostname"), spec.get("subdomain")) != ("Never", name, "train"):
        yield f"pod: {name} has {spec.get('restartPolicy')}, {spec.get('hostname')}.{spec.get('subdomain')}"
    if any(spec.get(field) for field in ("hostNetwork", "hostPID", "hostIPC")):
        yield f"pod: {name} uses a namespace of the host"
    if any("hostPath" in volume for volume in spec.get("volumes") or ()):
        yield f"pod: {name} mounts a path of the host"
    mains = [c for c in spec["containers"] if c["name"] == names.CONTAINER]
    if len(mains) != 1:
        yield f"pod: {name} has {len(mains)} containers called tensorflow"
        return
    env = [entry["name"] for entry in mains[0].get("env") or ()]
    doubled = {n for n in env if env.count(n) > 1 and n.startswith(("TF_CONFIG", "TFGPU_"))}
    if doubled:
        yield f"pod: {name} has {doubled} twice"
    cluster = tf_config(pod)
    task = cluster.get("task") or {}
    role, index = labels[names.LABEL_REPLICA_TYPE], labels[names.LABEL_REPLICA_INDEX]
    if cluster and (task.get("type"), str(task.get("index"))) != (role, index):
        yield f"pod: {name} has the task {task}"


def check_field(
    path: Path, schema: Mapping[str, Any], *, every: int = 1, offset: int = 0
) -> tuple[int, dict[str, list[str]]]:
    """How many values were tried (each `every`th), and what is wrong with which. A short walk takes one back."""
    tried = list(values(path, schema))[offset::every]
    found = {
        repr(value)[:120]: wrong[:3]
        for number, value in enumerate(tried)
        if (wrong := problems(path, value) + (changed_by_return(path, value) if every == 1 or not number else []))
    }
    return len(tried), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1))
    arguments = parser.parse_args()
    started = time.monotonic()
    fields = list(walk())
    count = violations = 0
    with ProcessPoolExecutor(arguments.processes) as pool:
        results = pool.map(check_field, [path for path, _ in fields], [schema for _, schema in fields])
        for (path, _), (tried, found) in zip(fields, results, strict=True):
            count += tried
            violations += len(found)
            for value, wrong in found.items():
                print(f"{'.'.join(path)} = {value}: {wrong}")
    figures = {"name": "specwalk", "ok": not violations, "fields": len(fields), "values": count}
    print(json.dumps({**figures, "violations": violations, "seconds": round(time.monotonic() - started, 1)}))
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
