"""`tfgpu doctor --gpu`: its pod, what it says, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.harness.live import LiveCluster
from tests.unit.cli.typed import Output, typed

from tfgpujob.cli import main as cli
from tfgpujob.client.gpu_check import gpu_pod
from tfgpujob.client.server import Server
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.exits import Exit
from tfgpujob.kube.interface import WatchEvent

CARD = {"name": "NVIDIA H100", "driver": "580.159.04", "memoryMiB": 81559, "freeMiB": 81000}
FOUND: dict[str, Any] = {
    "gpus": [CARD, CARD],
    "driverCuda": "13.0",
    "tensorflow": "2.21.0",
    "tensorflowCuda": "12.5.1",
    "nccl": True,
    "problems": [],
}
OLD = {
    "what": "the node's driver is for CUDA 11.8 at the most, and TensorFlow is built for 12.5.1",
    "fix": "update the node's driver",
    "stops": True,
}
NOTE = {"what": "of 81559 MiB 60000 are free", "fix": "nvidia-smi says what has the rest", "stops": False}
ARGUMENTS = ["doctor", "--gpu", "2", "--image", "trainer:1"]


def pods(live: LiveCluster) -> list[Object]:
    return [pod for pod in live.server.select("Pod") if pod["metadata"]["name"].startswith("tfgpu-gpu-doctor-")]


@contextmanager
def ending(live: LiveCluster, code: int, message: str) -> Iterator[list[Object]]:
    """Each pod of the kind ends so; those that were made."""
    made: list[Object] = []

    def end() -> None:
        live.until(lambda: bool(pods(live)), "its pod is there")
        made.extend(live.do(lambda: pods(live)))
        live.finish(made[0]["metadata"]["name"], code, message)

    kubelet = threading.Thread(target=end)
    kubelet.start()
    yield made
    kubelet.join()
    live.until(lambda: not pods(live), "its pod is gone")


def report(**found: Any) -> str:
    return json.dumps({"code": 0, "summary": {**FOUND, **found}})


def test_gpus_that_compute_are_shown_and_the_pod_goes(live: LiveCluster, capsys: Output) -> None:
    with ending(live, 0, report()) as made:
        assert cli.main(ARGUMENTS) == Exit.OK
    node = live.scheduler.nodes[0]
    assert capsys.readouterr().out.splitlines() == [
        *[f"{node}: NVIDIA H100, 81559 MiB, 81000 of them free, driver 580.159.04"] * 2,
        f"{node}: TensorFlow 2.21.0 for CUDA 12.5.1, the driver for 13.0",
        f"{node}: NCCL adds up what its GPUs have",
        f"nothing is wrong with the GPUs of {node}",
    ]
    (container,) = made[0]["spec"]["containers"]
    assert (container["image"], container["resources"]["limits"]["nvidia.com/gpu"]) == ("trainer:1", 2)


def test_json_has_what_was_found(live: LiveCluster, capsys: Output) -> None:
    with ending(live, 0, report(problems=[NOTE])):
        assert cli.main([*ARGUMENTS, "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == {**FOUND, "node": live.scheduler.nodes[0], "problems": [NOTE]}


def test_what_stops_jobs_is_shown_with_its_fix(live: LiveCluster, capsys: Output) -> None:
    with ending(live, 2, json.dumps({"code": 2, "summary": {"problems": [OLD]}})):
        assert cli.main(ARGUMENTS) == Exit.CLUSTER
    assert capsys.readouterr().out.splitlines() == [f"problem: {OLD['what']}", "  fix: update the node's driver"]


def test_an_image_without_the_trainer_says_its_last_words(live: LiveCluster, capsys: Output) -> None:
    with ending(live, 1, "No module named tfgpujob_trainer.gpu_doctor"):
        assert cli.main(ARGUMENTS) == Exit.CLUSTER
    said = capsys.readouterr().err
    assert "has ended: No module named tfgpujob_trainer.gpu_doctor; name an image of this release's trainer" in said


@pytest.mark.slow
def test_a_pod_that_stays_pending_is_told_in_kubernetes_words(live: LiveCluster, capsys: Output) -> None:
    live.do(lambda: setattr(live.scheduler, "gpus", 1))
    try:
        assert cli.main([*ARGUMENTS, "--timeout", "1"]) == Exit.CLUSTER
    finally:
        live.do(lambda: setattr(live.scheduler, "gpus", 64))
    said = capsys.readouterr().err
    assert "waits after 1 s: Unschedulable: " in said
    assert "another node with --node" in said
    live.until(lambda: not pods(live), "its pod is gone")


def test_a_pod_that_somebody_deletes_is_told_of(live: LiveCluster, capsys: Output) -> None:
    def delete() -> None:
        live.until(lambda: bool(pods(live)), "its pod is there")
        [pod] = live.do(lambda: pods(live))
        meta = pod["metadata"]
        live.do(lambda: live.server.delete("Pod", meta["namespace"], meta["name"], uid=meta["uid"], by="somebody"))

    somebody = threading.Thread(target=delete)
    somebody.start()
    assert cli.main(ARGUMENTS) == Exit.CLUSTER
    somebody.join()
    assert "was deleted while it ran; try again" in capsys.readouterr().err


def test_a_pod_that_is_gone_before_it_is_looked_at_is_told_of(
    live: LiveCluster, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = Server.changes

    async def late(server: Server, path: str, name: str) -> AsyncGenerator[WatchEvent]:
        await server.delete(f"{path}/{name}")
        while await server.items(path):
            await asyncio.sleep(0.01)
        async for event in changes(server, path, name):
            yield event

    monkeypatch.setattr(Server, "changes", late)
    assert "was deleted while it ran; try again" in typed(capsys, *ARGUMENTS, code=Exit.CLUSTER).err


def test_the_image_is_that_of_the_operators_jobs(live: LiveCluster, capsys: Output) -> None:
    container = {"name": "operator", "env": [{"name": "TRAINER_IMAGE", "value": "registry/trainer:9"}]}
    path = "/apis/apps/v1/deployments"
    operator = {"metadata": {"name": "tfgpu"}, "spec": {"template": {"spec": {"containers": [container]}}}}
    live.front.behind[path] = {"items": [operator]}
    try:
        with ending(live, 0, report()) as made:
            assert cli.main(["doctor", "--gpu", "--node", "gpu-7"]) == Exit.OK
    finally:
        del live.front.behind[path]
    spec = made[0]["spec"]
    assert spec["containers"][0]["image"] == "registry/trainer:9"
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "gpu-7"}
    capsys.readouterr()


def test_without_an_operator_the_image_is_asked_for(live: LiveCluster, capsys: Output) -> None:
    live.front.behind["/apis/apps/v1/deployments"] = {"items": []}
    try:
        assert cli.main(["doctor", "--gpu"]) == Exit.CLUSTER
    finally:
        del live.front.behind["/apis/apps/v1/deployments"]
    assert (
        "no operator is seen that says which image is the trainer's; name one with --image" in capsys.readouterr().err
    )


def test_a_machine_and_a_node_are_not_looked_at_together(capsys: Output) -> None:
    assert "use one of them" in typed(capsys, "doctor", "--gpu", "--local", code=Exit.USAGE).err


@pytest.mark.parametrize("node", [None, "gpu-7"])
def test_the_pod_is_as_a_namespace_with_strict_rules_asks(node: str | None) -> None:
    """What pod security's level `restricted` wants."""
    pod = gpu_pod("team", "trainer:1", 8, node)["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert ("nodeSelector" in pod) is (node is not None)
