"""A job's NetworkPolicy, enforced: its ports are open to its own pods, and /progress to the operator besides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from localcluster.release import NAMESPACE
from tests.integration.conftest import new_workspace
from tests.integration.installed import Installation
from tests.integration.kube import Kube
from tests.integration.target import Target
from tests.integration.workspace import Workspace

LISTEN = """
import socket, threading, time
def serve(port):
    with socket.create_server(("", port)) as server:
        while True:
            server.accept()[0].close()
for port in (2222, 8080, 9999):
    threading.Thread(target=serve, args=(port,), daemon=True).start()
time.sleep(3600)
"""
"""TensorFlow's port, that of /progress, and one such as NCCL takes."""
REACHES = """
import socket, sys
for port in (2222, 8080, 9999):
    try:
        socket.create_connection((sys.argv[1], port), timeout=1).close()
        print(port)
    except OSError:
        pass
"""


@pytest.fixture
def isolated(kube: Kube, target: Target, operator: Installation) -> Iterator[Workspace]:
    """The namespace whose jobs get a NetworkPolicy."""
    if operator.as_process:
        pytest.skip("IT_OPERATOR=process: policies know the operator by the labels of its pods")
    # Servers before 1.21 don't set the label.
    kube.patch("Namespace", "", NAMESPACE, {"metadata": {"labels": {"kubernetes.io/metadata.name": NAMESPACE}}})
    with new_workspace(kube, target, operator, operator.isolated) as made:
        yield made


@pytest.mark.smoke
def test_a_foreign_pod_reaches_no_port_of_a_job(operator: Installation, isolated: Workspace) -> None:
    workspace = isolated
    kube, here = workspace.kube, workspace.namespace
    workspace.add_pod("stranger", {"name": "main", "image": workspace.image, "command": ["python", "-c", LISTEN]})
    job = workspace.submit(workspace.new_job("alone", LISTEN))
    workspace.wait_for(job, "Running")
    policy = kube.get("NetworkPolicy", here, job)
    pods = workspace.pods(job)
    addresses = {name: pod["status"]["podIP"] for name, pod in pods.items()}
    workspace.eventually(
        lambda: kube.get("Pod", here, "stranger")["status"].get("phase") == "Running", "the stranger runs"
    )

    def reached(namespace: str, pod: str, container: str, of: str) -> set[int]:
        command = ("python", "-c", REACHES, addresses[of])
        return {int(line) for line in kube.run_in(namespace, pod, container, *command).split()}

    first, second = sorted(addresses)
    workspace.eventually(
        lambda: not reached(here, "stranger", "main", first) and not reached(here, "stranger", "main", second),
        "the stranger is shut out of both pods",
    )
    assert reached(here, first, "tensorflow", second) == {2222, 8080, 9999}, "the job's own pods"
    assert reached(NAMESPACE, operator.wait_for_leader(), "operator", first) == {8080}, "/progress alone"

    kube.delete("NetworkPolicy", here, job)
    again = workspace.eventually(lambda: kube.find("NetworkPolicy", here, job), "the policy is there again")
    assert again["metadata"]["uid"] != policy["metadata"]["uid"]
    assert workspace.uids(job) == {name: pod["metadata"]["uid"] for name, pod in pods.items()}, "nothing is restarted"
    workspace.delete(job)
    workspace.eventually(lambda: not kube.find("NetworkPolicy", here, job), "the policy goes with its job")
