"""A wrong type anywhere in a template is refused with its field, or left to the API server: it never raises."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import orjson
import pytest
import yaml
from tests.unit.core.make import CONFIG, TRAINER

from tfgpujob.api import JobSpec, parse_job
from tfgpujob.core.advice import advice
from tfgpujob.core.observed.plan import resolve
from tfgpujob.core.observed.trim import trim_pod
from tfgpujob.core.pods.expansion import expanded
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.core.pods.pod_create import PodCreate
from tfgpujob.core.pods.restricted import restrict
from tfgpujob.names import Role

TEMPLATE = yaml.safe_load("""
metadata: {labels: {a: b}, annotations: {c: d}}
spec:
  containers:
    - name: tensorflow
      image: i:1
      env: [{name: A, value: '1'}, {name: no_proxy, value: p}, {name: B, valueFrom: {secretKeyRef: {name: s, key: k}}}]
      envFrom: [{secretRef: {name: s}}]
      ports: [{name: p, containerPort: 80, hostPort: 0}]
      resources: {limits: {cpu: 1}, requests: {cpu: 1}}
      volumeMounts: [{name: data, mountPath: /data, subPathExpr: $(A)}]
      volumeDevices: [{name: v, devicePath: /d}]
      livenessProbe: {httpGet: {port: 80}}
      lifecycle: {preStop: {httpGet: {port: 80}}}
      securityContext: {runAsUser: 1, capabilities: {add: [CHOWN], drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
  initContainers:
    - name: init
      image: i
      restartPolicy: Always
      resources: {requests: {cpu: 1}}
      volumeMounts: [{name: data, mountPath: /d}]
  volumes:
    - {name: s, secret: {secretName: x, items: [{key: a, path: a}]}}
    - {name: p, projected: {sources: [{secret: {name: x, items: [{key: k, path: p}]}}]}}
  securityContext: {runAsUser: 1, sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]}
  affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: z}]}}
  tolerations: [{key: a, operator: Exists}]
  nodeSelector: {a: b}
  resourceClaims: [{name: c, resourceClaimTemplateName: t}]
  terminationGracePeriodSeconds: 5
  serviceAccountName: x
""")
CLAIM = {"metadata": {"name": "data"}, "spec": {"accessModes": ["a"], "resources": {"requests": {"storage": "1Gi"}}}}
GIT = {"git": {"url": "https://a/b.git", "revision": "0" * 40, "secretName": "s"}}
PROGRAMS: dict[str, dict[str, Any]] = {
    "a program": {"gpu": {"claim": {"deviceClassName": "gpu"}}, "image": "i"},
    "the trainer": {"trainer": {**TRAINER, "code": GIT, "models": {"image": "m"}}},
}
WRONG: tuple[Any, ...] = (5, "x", ["x"], {"x": [1]}, [{}], [[1]])


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from paths(part, (*path, key))


def with_wrong(path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    template = deepcopy(TEMPLATE)
    place = template
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return template


def everything(job: dict[str, Any]) -> bool:
    """All that is made of a template: whether it was accepted."""
    spec = parse_job(job)
    if not isinstance(spec, JobSpec):
        assert all(problem.field.startswith("spec.replicaSpecs.worker") for problem in spec)
        return False
    list(advice(spec))
    placed = {"labels": {"a": "b"}, "nodeSelector": {"x": "y"}, "tolerations": [{"key": "z"}]}
    plan = replace(resolve(spec, CONFIG), gang="Volcano", placement={Role.WORKER: placed})
    pod = build_pod(job, spec, plan, Replica(Role.WORKER, 0, 1))
    orjson.dumps(
        [pod, restrict(pod), *(need.body for need in PodCreate(job, spec, plan, Replica(Role.WORKER, 0, 1)).needs)]
    )
    trim_pod(pod)
    for container in pod["spec"]["containers"]:
        for variable in container.get("env", ()):
            expanded(variable.get("value", ""), dict[str, str]().get)
    return True


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_wrong_type_in_a_template_raises(program: str) -> None:
    def job(template: Any) -> dict[str, Any]:
        worker = {"template": template, "volumeClaimTemplates": [CLAIM]}
        policy = {"schedulingPolicy": {"topologyKey": "zone"}}
        spec = {"strategy": "OneDevice", "replicaSpecs": {"worker": worker}, "runPolicy": policy, **PROGRAMS[program]}
        return {"metadata": {"name": "a", "namespace": "ns", "uid": "u"}, "spec": spec}

    assert everything(job(TEMPLATE)), parse_job(job(TEMPLATE))
    accepted = [everything(job(with_wrong(path, value))) for path in paths(TEMPLATE) for value in WRONG]
    assert 0 < sum(accepted) < len(accepted)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodeSelector", 5),
        ("tolerations", {}),
        ("containers[0].resources.requests", [1]),
        ("containers[0].env[0].value", 5),
    ],
)
def test_what_is_added_to_is_refused_by_field(field: str, value: Any) -> None:
    path = (
        "spec",
        *(int(key) if key.isdigit() else key for key in field.replace("[", ".").replace("]", "").split(".")),
    )
    spec = {"strategy": "OneDevice", "image": "i", "replicaSpecs": {"worker": {"template": with_wrong(path, value)}}}
    found = parse_job({"metadata": {"name": "a"}, "spec": spec})
    assert isinstance(found, tuple)
    assert f"spec.replicaSpecs.worker.template.spec.{field}" in [problem.field for problem in found]


def test_a_value_that_is_left_empty_is_as_in_a_pod() -> None:
    """`value:` without one: API servers take it for none, and so does the CRD."""
    template = {"spec": {"containers": [{"name": "tensorflow", "env": [{"name": "A", "value": None}]}]}}
    spec = {"strategy": "OneDevice", "image": "i", "replicaSpecs": {"worker": {"template": template}}}
    assert isinstance(parse_job({"metadata": {"name": "a", "namespace": "ns"}, "spec": spec}), JobSpec)
