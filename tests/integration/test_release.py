"""From a release's folder and a registry on this machine's loopback alone: `helm install oci://`, `kubectl apply`."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from localcluster import apt, helm
from localcluster.clusters import Local
from localcluster.release import NAMESPACE, RELEASE
from localcluster.release import version as current_version
from release.images import IMAGES
from tests.integration.eventually import eventually
from tests.integration.installed import Installation
from tests.integration.kube import RESOURCES, Kube, Object
from tests.integration.registry import Registry, registry
from tests.integration.target import Target
from tests.integration.workspace import RUN_ON, Workspace
from tests.pages import ROOT

from release import __main__ as release

EXAMPLE = ROOT / "examples/digits-multiworker.yaml"
pytestmark = pytest.mark.serial
IN_NAMESPACE = ("Deployment", "Pod", "Service", "ServiceAccount", "Role", "RoleBinding", "ConfigMap")
IN_CLUSTER = ("ClusterRole", "ClusterRoleBinding")


@dataclass(frozen=True)
class Released:
    """A release whose images are in the registry."""

    folder: Path
    registry: Registry
    version: str

    def file(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module")
def released(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Released]:
    if not isinstance(target.cluster, Local):
        pytest.skip("only nodes of the local cluster see the registry on this machine's loopback")
    if not apt.available():
        pytest.skip("the registry is a package of Debian 12")
    folder, version = tmp_path_factory.mktemp("release"), current_version()
    with registry(folder) as running:
        release.make(version, running.host, folder / version, ["operator"])
        yield Released(folder / version, running, version)


def config_of(archive: Path) -> Any:
    with tarfile.open(archive) as tar:
        [name] = [name for name in tar.getnames() if name.endswith(".json") and name != "manifest.json"]
        config = tar.extractfile(name)
        assert config is not None
        return json.load(config)


def of_release(kube: Kube, instance: str) -> set[str]:
    """What is there of what a release brings, but for the definition."""
    found = set()
    for kind in (*IN_NAMESPACE, *IN_CLUSTER):
        space = NAMESPACE if RESOURCES[kind][2] else ""
        for item in kube.list(kind, space, labelSelector=f"app.kubernetes.io/instance={instance}"):
            found.add(f"{kind} {item['metadata']['name']}")
    return found


def test_a_release_is_installed_by_helm_from_a_registry_and_then_without_helm(
    operator: Installation, workspace: Workspace, target: Target, released: Released
) -> None:
    kube, host, version = workspace.kube, released.registry.host, released.version
    archive = released.file(IMAGES["operator"].file(version, "tar"))
    image = f"{host}/tfgpujob-operator:{version}"
    released.registry.push_image(archive, image)
    assert released.registry.image_config(image)["rootfs"] == config_of(archive)["rootfs"]
    packed = released.file(f"tfgpujob-{version}.tgz")
    helm.push(packed, f"oci://{host}/charts")
    [pulled] = released.registry.layers("charts/tfgpujob", version)
    assert pulled == f"sha256:{hashlib.sha256(packed.read_bytes()).hexdigest()}"
    operator.end_processes()
    operator.uninstall()
    try:
        helm.install(kube.kubeconfig, RELEASE, NAMESPACE, f"oci://{host}/charts/tfgpujob:{version}")
        [pod] = workspace.eventually(operator.pods, "the operator's pod")
        assert pod["spec"]["containers"][0]["image"] == image
        operator.wait_for_leader()
        helm.run_tests(kube.kubeconfig, RELEASE, NAMESPACE)

        kept = workspace.submit(workspace.new_job("kept", RUN_ON))
        workspace.wait_for(kept, "Running")
        before = workspace.uids(kept)
        operator.scale(0)  # else it may still ask for what it has no right to any more
        operator.uninstall()
        workspace.eventually(lambda: not of_release(kube, RELEASE), "an uninstall leaves nothing of the release")
        assert kube.find("CustomResourceDefinition", "", "tfgpujobs.tfgpu.dev") is not None
        assert workspace.condition(kept, "Running")["status"] == "True"

        applied = list(yaml.load_all(released.file(file_for(kube)).read_text(), Loader=yaml.CSafeLoader))
        for item in applied:
            kube.apply(item)
        try:
            see_jobs_to_their_end(workspace, target, kept, before)
        finally:
            remove(kube, applied)
    finally:
        operator.install()
        operator.resume()


def see_jobs_to_their_end(workspace: Workspace, target: Target, kept: str, before: dict[str, str]) -> None:
    """The README's job trains, and the existing one continues and is reconciled."""
    job = yaml.safe_load(EXAMPLE.read_text())
    # The chart's own trainer is the one for GPUs.
    job["spec"]["image"] = target.trainer_image
    assert workspace.finished(workspace.submit(job), seconds=240) == "Succeeded", workspace.describe()
    assert workspace.uids(kept) == before
    workspace.edit(kept, runPolicy={"suspend": True})
    workspace.wait_for(kept, "Suspended")


def file_for(kube: Kube) -> str:
    minor = int(kube.call("GET", "/version")["minor"].rstrip("+"))
    return "install.yaml" if minor >= 28 else "install-no-cel.yaml"


def remove(kube: Kube, applied: list[Object]) -> None:
    """All but the definition, with which the jobs would go, and the namespace."""
    for item in applied:
        if item["kind"] not in {"Namespace", "CustomResourceDefinition"}:
            kube.delete(item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])
    eventually(lambda: not of_release(kube, "tfgpu"), "what was applied is gone")
