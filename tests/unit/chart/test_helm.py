"""The installer: what it does in which state of a release, and how it speaks to a helm binary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from localcluster import helm

KUBECONFIG = Path("/nowhere/kubeconfig")

FAKE_HELM = """#!/bin/sh
printf '%s\\n' "$*" >> "$0.calls"
[ "$1" = status ] && { [ -f "$0.status" ] && exec cat "$0.status"; echo 'Error: release: not found' >&2; exit 1; }
cat > "$0.stdin"
[ -f "$0.error" ] && { cat "$0.error" >&2; exit 1; }
[ -f "$0.$1.error" ] && { cat "$0.$1.error" >&2; exit 1; }
[ "$1" = template ] && printf 'kind: A\\n---\\n---\\nkind: B\\n'
exit 0
"""


@pytest.fixture
def binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "helm"
    path.write_text(FAKE_HELM)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


@pytest.fixture
def in_state(binary: Path) -> Callable[[str], None]:
    def set_status(status: str) -> None:
        binary.with_name("helm.status").write_text(json.dumps({"info": {"status": status}}))

    return set_status


def install(values: dict[str, Any] | None = None) -> None:
    helm.install(KUBECONFIG, "tfgpu", "ops", Path("chart"), values, timeout_seconds=7)


def calls(binary: Path) -> list[list[str]]:
    lines = binary.with_name("helm.calls").read_text().splitlines()
    return [line.split() for line in lines if not line.startswith("status")]


def test_the_first_install_makes_the_namespace_and_waits(binary: Path) -> None:
    install({"replicas": 2})
    (call,) = calls(binary)
    assert call[:3] == ["install", "--create-namespace", "tfgpu"]
    assert {"--wait", "7s", "chart", str(KUBECONFIG), "ops"} <= set(call)
    assert json.loads(binary.with_name("helm.stdin").read_text()) == {"replicas": 2}


@pytest.mark.parametrize(("host", "plain"), [("127.0.0.1:5000", True), ("registry.example.com", False)])
def test_a_chart_of_a_registry(binary: Path, host: str, plain: bool) -> None:
    """Only a registry of this machine is asked without TLS."""
    helm.push(Path("tfgpujob-1.tgz"), f"oci://{host}/charts")
    helm.install(KUBECONFIG, "tfgpu", "ops", f"oci://{host}/charts/tfgpujob:1")
    pushed, installed = calls(binary)
    assert pushed[:3] == ["push", "tfgpujob-1.tgz", f"oci://{host}/charts"]
    assert f"oci://{host}/charts/tfgpujob:1" in installed
    assert [("--plain-http" in call) for call in (pushed, installed)] == [plain, plain]


def test_the_charts_tests_are_run(binary: Path) -> None:
    helm.run_tests(KUBECONFIG, "tfgpu", "ops", timeout_seconds=7)
    [call] = calls(binary)
    assert call[:2] == ["test", "tfgpu"]
    assert {"7s", "ops", str(KUBECONFIG)} <= set(call)


@pytest.mark.parametrize("status", ["deployed", "failed"])
def test_a_release_that_is_there_becomes_exactly_this(
    binary: Path, in_state: Callable[[str], None], status: str
) -> None:
    in_state(status)
    install()
    (call,) = calls(binary)
    assert call[:3] == ["upgrade", "--reset-values", "tfgpu"]


@pytest.mark.parametrize("status", ["pending-install", "pending-upgrade"])
def test_a_release_left_half_way_is_removed_first(binary: Path, in_state: Callable[[str], None], status: str) -> None:
    in_state(status)
    install()
    assert [call[0] for call in calls(binary)] == ["uninstall", "install"]


def test_a_release_that_somebody_has_scaled_is_installed_anew(binary: Path, in_state: Callable[[str], None]) -> None:
    in_state("deployed")
    said = "Error: conflict occurred while applying object ops/tfgpu apps/v1, Kind=Deployment: .spec.replicas\n"
    binary.with_name("helm.upgrade.error").write_text(said)
    install()
    assert [call[0] for call in calls(binary)] == ["upgrade", "uninstall", "install"]


def test_a_failure_says_what_helm_said_and_what_to_look_at(binary: Path) -> None:
    binary.with_name("helm.error").write_text("Error: context deadline exceeded\n")
    with pytest.raises(helm.HelmError) as failed:
        install()
    assert "cannot install tfgpu into namespace ops: context deadline exceeded\n" in str(failed.value)
    assert f"kubectl --kubeconfig {KUBECONFIG} --namespace ops describe pods" in str(failed.value)


def test_status_is_empty_without_a_release(binary: Path, in_state: Callable[[str], None]) -> None:
    assert helm.status(KUBECONFIG, "tfgpu", "ops") == ""
    in_state("deployed")
    assert helm.status(KUBECONFIG, "tfgpu", "ops") == "deployed"


def test_an_uninstall_of_nothing_is_no_error(binary: Path) -> None:
    helm.uninstall(KUBECONFIG, "tfgpu", "ops")
    (call,) = calls(binary)
    assert call[:2] == ["uninstall", "tfgpu"]
    assert {"--ignore-not-found", "--wait"} <= set(call)


def test_a_template_is_rendered_for_a_server(binary: Path) -> None:
    objects = helm.template(Path("chart"), kube_version="v1.20.2", api_versions=["a/v1", "b/v1"])
    assert objects == [{"kind": "A"}, {"kind": "B"}]
    text = " ".join(calls(binary)[0])
    assert "--kube-version v1.20.2" in text
    assert "--api-versions a/v1 --api-versions b/v1" in text


def test_the_library_refuses_a_cluster_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(helm.HelmError):
        helm.status(tmp_path / "kubeconfig", "tfgpu", "ops")
