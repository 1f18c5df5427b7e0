"""`tfgpu doctor` among twelve faults, eight of a cluster and four of a machine: it finds them all, and no other."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.harness.live import LiveCluster
from tests.unit.cli.typed import Output, typed

from tfgpujob import __version__
from tfgpujob.cli import main as cli
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.exits import Exit
from tfgpujob.local import doctor as machine

IN_A_CLUSTER = {
    "definition": "problem: the definition is older than this tool",
    "rights": "problem: the operator may not: create pods, delete pods, list pods, create services, create events, "
    "list tfgpujobs, update tfgpujobs/status, list podgroups, create podgroups, delete podgroups, list workloads, "
    "create workloads, delete workloads, update workloads/status",
    "image": "problem: the image operator:1 can't be pulled: ImagePullBackOff",
    "GPUs": "problem: no node offers nvidia.com/gpu",
    "DNS": "problem: no pod of the cluster's DNS is ready",
    "webhooks": "problem: a job sent on trial comes back with other values in spec.trainer.epochs, "
    "spec.trainer.params.units",
    "clock": "note: the clock of node c is 600 s ahead",
    "storage": "note: there is no default StorageClass",
}
ON_A_MACHINE = {
    "TensorFlow": "problem: TensorFlow is installed 2 times, as tensorflow and tensorflow-cpu",
    "Keras": "problem: keras is 3.0.0, and the trainer is tested with 3.15.1",
    "driver": "problem: 2 NVIDIA devices are in this machine, and their driver does not answer",
    "/dev/shm": "problem: /dev/shm has 64 MiB",
}


def findings(said: str) -> list[str]:
    """What is wrong, each of which has a line with the fix below it."""
    lines = said.splitlines()
    assert all(re.match("  fix: ..", fix) for fix in lines[1::2]), said
    return lines[::2]


def assert_found(said: str, planted: dict[str, str]) -> None:
    found = findings(said)
    assert len(found) == len(planted), said
    missing = [fault for fault, words in planted.items() if not any(line.startswith(words) for line in found)]
    assert missing == []


def test_the_faults_are_twelve() -> None:
    assert len(IN_A_CLUSTER) + len(ON_A_MACHINE) == 12


def lease(name: str, renewed: datetime) -> dict[str, Any]:
    spec = {"holderIdentity": "tfgpu-1", "leaseDurationSeconds": 15, "renewTime": renewed.isoformat()}
    return {"metadata": {"name": name}, "spec": spec}


def faulty() -> dict[str, dict[str, Any]]:
    """What a cluster answers whose operator leads, and that has eight faults."""
    gangs = {"name": "GANG_BACKENDS", "value": "Volcano,OfALaterRelease"}
    kueue = {"name": "KUEUE_ENABLED", "value": "true"}
    container = {"name": "operator", "env": [{"name": "LEASE_NAME", "value": "tfgpu"}, gangs, kueue]}
    template = {"spec": {"serviceAccountName": "tfgpu", "containers": [container]}}
    operator = {"name": "tfgpu", "namespace": "ops", "labels": {"app.kubernetes.io/version": __version__}}
    waiting = {"image": "operator:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    now = datetime.now(UTC)
    # One webhook has taken a value away, another has changed one.
    trainer = {"entrypoint": "digits", "globalBatchSize": 128, "epochs": 2, "params": {}}
    lists: dict[str, list[Object]] = {
        "/apis/apps/v1/deployments": [{"metadata": operator, "spec": {"template": template}}],
        "/api/v1/pods": [{"metadata": operator, "status": {"containerStatuses": [waiting]}}],
        "/apis/storage.k8s.io/v1/storageclasses": [{"metadata": {}}],
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases": [
            lease(node, now + timedelta(seconds=ahead)) for node, ahead in {"a": 0, "b": 0, "c": 600}.items()
        ],
        "/api/v1/namespaces/kube-system/pods": [{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}],
        "/api/v1/nodes": [{"status": {"allocatable": {"cpu": "8"}}}],
    }
    return {
        **{path: {"items": items} for path, items in lists.items()},
        "/apis/authorization.k8s.io/v1/subjectaccessreviews": {"status": {"allowed": False}},
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tfgpujobs.tfgpu.dev": {"spec": {"versions": []}},
        "/apis/coordination.k8s.io/v1/namespaces/ops/leases/tfgpu": lease("tfgpu", now),
        "/apis/tfgpu.dev/v1alpha1/namespaces/default/tfgpujobs": {
            "spec": {"strategy": "OneDevice", "replicaSpecs": {"worker": {"replicas": 1}}, "trainer": trainer}
        },
    }


def test_all_faults_of_a_cluster_are_found_at_once(live: LiveCluster, capsys: Output) -> None:
    with mock.patch.dict(live.front.behind, faulty()):
        assert_found(typed(capsys, "doctor", code=Exit.CLUSTER).out, IN_A_CLUSTER)


def test_a_namespace_that_the_operator_does_not_serve_is_named(live: LiveCluster, capsys: Output) -> None:
    answers = faulty()
    (deployment,) = answers["/apis/apps/v1/deployments"]["items"]
    served = {"name": "WATCH_NAMESPACES", "value": "team-a,team-b"}
    deployment["spec"]["template"]["spec"]["containers"][0]["env"].append(served)
    with mock.patch.dict(live.front.behind, answers):
        said = typed(capsys, "doctor", code=Exit.CLUSTER).out
    assert "problem: no operator runs jobs of the namespace default, only of team-a, team-b\n" in said


def install(folder: Path, name: str, version: str, *needs: str) -> None:
    """As pip leaves it in site-packages."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {n}" for n in needs)]
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("\n".join(lines) + "\n")


def test_all_faults_of_a_machine_are_found_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    install(tmp_path, "tensorflow", "2.21.0")
    install(tmp_path, "tensorflow-cpu", "2.21.0")
    install(tmp_path, "keras", "3.0.0")
    install(tmp_path, "tfgpujob-trainer", __version__, "keras==3.15.1")
    found = {distribution.name: distribution for distribution in distributions(path=[str(tmp_path)])}
    monkeypatch.setattr(machine, "distributions", found.values)
    monkeypatch.setattr(machine, "requires", lambda name: found[name].requires)
    here = replace(machine.look(), gpus_on_the_bus=2, driver=False, shared_memory=64 << 20, free_disk=100 << 30)
    monkeypatch.setattr(machine, "look", lambda: here)
    assert cli.main(["doctor", "--local"]) == Exit.USAGE
    assert_found(capsys.readouterr().out, ON_A_MACHINE)
