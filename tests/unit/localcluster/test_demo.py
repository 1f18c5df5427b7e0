"""`make demo` on kind, whose commands a stand-in takes: what it asks of whom, and what a person reads meanwhile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from localcluster import clusters, demo, helm
from localcluster.kubectl import KubeError
from localcluster.progress import inside_a_step, run_steps

Object = dict[str, Any]
FIRST_TIME = (
    "The first time it takes as long as it takes to download 2 GB and to build two images, which was not measured; "
    "later a minute or two."
)
EPOCHS = ["tfgpu-train: epoch 1/20 loss 1", "another line", "tfgpu-train: epoch 20/20 loss 0.1"]
STATUSES: list[Object] = [
    {"conditions": [{"type": "Running", "status": "False", "message": "0 of 2 replicas are ready"}]},
    {"conditions": [{"type": "Running", "status": "True"}]},
    {"conditions": [{"type": "Finished", "status": "True"}, {"type": "Succeeded", "status": "True"}]},
]


class Machine:
    """Docker and kind."""

    def __init__(self) -> None:
        self.ran: list[list[str]] = []
        self.config: Object = {}
        self.clusters = ""

    def run(self, *command: object, stdin: str | None = None, **_: object) -> str:
        words = [str(word) for word in command]
        self.ran.append(words)
        if words[:3] == ["kind", "create", "cluster"]:
            self.config, self.clusters = yaml.safe_load(stdin or ""), clusters.Kind.name
        if words[:3] == ["kind", "get", "nodes"]:
            return "tfgpujob-control-plane\ntfgpujob-worker\ntfgpujob-worker2\n"
        return self.clusters if words[:3] == ["kind", "get", "clusters"] else "kubeconfig"


class Kube:
    """A cluster in which the job is trained while it is looked at."""

    def __init__(self, _: Path) -> None:
        self.statuses = list(STATUSES)

    def find(self, _: str) -> None:
        """Nothing is left of an earlier demo."""

    def create(self, _: str, __: Object) -> None:
        """It is there."""

    def get(self, path: str) -> Object:
        if "tfgpujobs" in path:
            return {"status": self.statuses.pop(0)}
        if path.endswith("persistentvolumeclaims/demo-output"):
            return {"spec": {"volumeName": "v"}}
        if path.endswith("persistentvolumes/v"):
            return {"spec": {"csi": {}}}
        summary = {"splits": {"test": {"accuracy": 0.97}}, "weightsSha256": "a" * 64, "model": "/output/model.keras"}
        ended = {"terminated": {"message": json.dumps({"summary": summary})}}
        return {"metadata": {"name": "w"}, "status": {"containerStatuses": [{"name": "tensorflow", "state": ended}]}}

    def text(self, _: str) -> str:
        if len(self.statuses) + 1 == len(STATUSES):
            raise KubeError(400, "waiting to start")
        return "\n".join(EPOCHS)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.delenv("TFGPU_CLUSTER", raising=False)
    monkeypatch.setattr(clusters, "run", made.run)
    monkeypatch.setattr(clusters, "CACHE", tmp_path)
    monkeypatch.setattr(clusters, "_container_engine", lambda: "docker")
    monkeypatch.setattr("localcluster.clusters.shutil.which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(helm, "install", lambda *words, values: made.ran.append(["helm", *map(str, words[1:])]))
    monkeypatch.setattr(demo, "Kube", Kube)
    monkeypatch.setattr("localcluster.demo.time.sleep", lambda _: None)
    return made


def test_on_kind_it_says_what_it_does_and_how_long_that_takes(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main() == 0
    said = re.sub(r"\d+(\.\d+)? s$", "N s", capsys.readouterr().out, flags=re.MULTILINE)
    begun, _, after = said.partition("\nSucceeded after N s\n")
    assert begun.splitlines() == [
        FIRST_TIME,
        "[1/4] cluster  start a kind cluster, and build both images, where need be ...",
        "[1/4] cluster  a kind cluster, with the images of operator and trainer (CPU build of TensorFlow), N s",
        "[2/4] install  the operator, by Helm ...",
        "[2/4] install  helm release tfgpujob in namespace tfgpu-system, N s",
        "[3/4] apply    a job, examples/digits-multiworker.yaml ...",
        "[3/4] apply    examples/digits-multiworker.yaml as demo, with output.claim: demo-output, N s",
        "[4/4] train    20 epochs on two workers ...",
        "      0 of 2 replicas are ready",
        "      epoch 1/20 loss 1",
        "      epoch 20/20 loss 0.1",
        "[4/4] train    Succeeded, N s",
    ]
    assert "test accuracy                       0.970" in after
    assert f"export KUBECONFIG={tmp_path}/kind.kubeconfig" in after
    assert "kind delete cluster --name tfgpujob" in after


def test_on_kind_it_makes_two_nodes_with_pretend_gpus_and_loads_both_images(machine: Machine) -> None:
    assert demo.main() == 0
    assert machine.config["nodes"] == [{"role": "control-plane"}, {"role": "worker"}, {"role": "worker"}]
    patched = [words[5] for words in machine.ran if "--subresource=status" in words]
    assert patched == ["tfgpujob-worker", "tfgpujob-worker2"]
    built = [(words[words.index("--tag") + 1], [w for w in words if "build-arg" in w]) for words in machine.ran
             if words[:2] == ["docker", "build"]]  # fmt: skip
    assert [(tag.split(":")[0], given) for tag, given in built] == [
        ("tfgpujob-trainer", ["--build-arg=VARIANT=cpu"]),
        ("tfgpujob-operator", []),
    ]
    loads = [words for words in machine.ran if words[:2] == ["kind", "load"]]
    assert [words[2:5] for words in loads] == [["image-archive", "--name", "tfgpujob"]] * 2
    order = [" ".join(words[:2]) for words in machine.ran if words[0] in {"kind", "docker", "helm"}]
    assert (
        order.index("kind create")
        < order.index("docker build")
        < order.index("kind load")
        < order.index("helm tfgpujob")
    )


def test_the_second_time_it_says_that_less_is_to_be_done(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.clusters = clusters.Kind.name
    assert demo.main() == 0
    assert capsys.readouterr().out.startswith("It takes a minute or two: cluster and images have been made before.\n")
    assert not [words for words in machine.ran if words[:3] == ["kind", "create", "cluster"]]


def test_what_fails_names_the_step_the_cause_and_what_to_look_at(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {"conditions": [{"type": "Failed", "status": "True", "message": "worker 0 failed"},
                             {"type": "Finished", "status": "True"}]}  # fmt: skip
    monkeypatch.setattr(f"{__name__}.STATUSES", [failed])
    assert demo.main() == 1
    said = capsys.readouterr().err
    assert "[4/4] train failed: worker 0 failed\n" in said
    assert f"look at:  KUBECONFIG={tmp_path}/kind.kubeconfig .venv/bin/tfgpu describe demo\n" in said


def test_steps_inside_a_step_have_no_counter_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    with inside_a_step():
        run_steps([("fetch", lambda: None)])
    run_steps([("fetch", lambda: None)])
    said = re.sub(r"\d+\.\d s", "N s", capsys.readouterr().err)
    assert said == "      fetch ...\n      fetch: done in N s\n[1/1] fetch ...\n[1/1] fetch: done in N s\n"
