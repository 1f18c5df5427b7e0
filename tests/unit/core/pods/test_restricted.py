"""Pod Security "restricted" as a switch: what is added to pods, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob.api import JobSpec, parse_job

CONFIG = replace(make.CONFIG, restricted=True)
TEMPLATE = {
    "spec": {
        "containers": [
            {"name": "tensorflow", "securityContext": {"runAsUser": 7, "capabilities": {"add": ["NET_BIND_SERVICE"]}}},
            {"name": "logs", "image": "a", "securityContext": {"capabilities": {"drop": ["NET_RAW"]}}},
        ],
        "initContainers": [{"name": "setup", "image": "a"}],
    }
}


def started(**config: Any) -> dict[str, Any]:
    world = World(make.job(image="mine:1", trainer=None, worker={"replicas": 2, "template": TEMPLATE}), CONFIG)
    world.config = replace(CONFIG, **config)
    world.settle()
    pod: dict[str, Any] = world.pod("train-worker-1")
    return pod


def test_pods_keep_to_restricted_whatever_their_template_leaves_out() -> None:
    spec = started()["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    containers = [*spec["initContainers"], *spec["containers"]]
    assert len(containers) == 4, "with the one that waits for peers"
    for container in containers:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False, container["name"]
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"], container["name"]
    trains = next(c for c in containers if c["name"] == "tensorflow")["securityContext"]
    assert (trains["runAsUser"], trains["capabilities"]["add"]) == (7, ["NET_BIND_SERVICE"])


@pytest.mark.parametrize("config", [{"restricted": False}, {"allow_host_namespaces": frozenset({"ns"})}])
def test_without_the_switch_and_where_host_access_is_allowed_pods_are_as_written(config: dict[str, Any]) -> None:
    assert "securityContext" not in started(**config)["spec"]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("volumes[0].nfs", {"volumes": [{"name": "a", "nfs": {"server": "b", "path": "/"}}]}),
        ("volumes[0].flexVolume", {"volumes": [{"name": "a", "flexVolume": {"driver": "b"}}]}),
        ("securityContext.runAsNonRoot", {"securityContext": {"runAsNonRoot": False}}),
        ("securityContext.runAsUser", {"securityContext": {"runAsUser": 0}}),
        ("containers[0].securityContext.runAsUser", {"runAsUser": 0}),
        ("containers[0].securityContext.runAsNonRoot", {"runAsNonRoot": False}),
        ("containers[0].securityContext.allowPrivilegeEscalation", {"allowPrivilegeEscalation": True}),
        ("containers[0].securityContext.seccompProfile.type", {"seccompProfile": {"type": ""}}),
        ("containers[0].securityContext.capabilities.add[0]", {"capabilities": {"add": ["CHOWN"]}}),
    ],
)
def test_what_restricted_refuses_is_refused_by_field(field: str, said: dict[str, Any]) -> None:
    if field.startswith("containers"):
        said = {"containers": [{"name": "tensorflow", "securityContext": said}]}
    job = make.job("OneDevice", image="mine:1", trainer=None, worker={"template": {"spec": said}})
    found = parse_job(job, restricted=True)
    assert isinstance(found, tuple)
    assert [problem.field for problem in found] == [f"spec.replicaSpecs.worker.template.spec.{field}"]
    assert isinstance(parse_job(job), JobSpec)
    assert isinstance(parse_job(job, restricted=True, allow_host=True), JobSpec)


def test_volumes_that_restricted_knows_pass() -> None:
    sources = {
        "configMap": {"name": "a"},
        "csi": {"driver": "d"},
        "emptyDir": {},
        "image": {},
        "secret": {"secretName": "a"},
    }
    volumes = [{"name": kind.lower(), kind: source} for kind, source in sources.items()]
    job = make.job("OneDevice", image="mine:1", trainer=None, worker={"template": {"spec": {"volumes": volumes}}})
    assert isinstance(parse_job(job, restricted=True), JobSpec)
