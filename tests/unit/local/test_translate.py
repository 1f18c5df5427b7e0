"""From the core's pod to a process: what is replaced, and that nothing else is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tfgpujob.api import JobSpec, parse_job
from tfgpujob.core.observed.plan import resolve
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.local.devices import Devices, is_cpu_build, share_out
from tfgpujob.local.folder import Folder
from tfgpujob.local.offline import CONFIG
from tfgpujob.local.ports import Ports
from tfgpujob.local.process import Launch
from tfgpujob.local.translate import Here, launch
from tfgpujob.names import Role

TRAINER = {
    "entrypoint": "digits",
    "globalBatchSize": 128,
    "epochs": 1,
    "output": {"directory": "/models"},
    "params": {"data": "/code/a.csv", "out": ["/models/x"], "other": "/models2/code"},
}


def translated(folder: Path, spec: dict[str, Any], claim: str | None = None, **here: Any) -> Launch:
    job = {"metadata": {"name": "a", "namespace": "ns", "uid": "u"}, "spec": spec}
    parsed = parse_job(job)
    assert isinstance(parsed, JobSpec), parsed
    pod = build_pod(job, parsed, resolve(parsed, CONFIG), Replica(Role.WORKER, 0, 2, 1))
    run = Folder(folder / "run", claim)
    run.open()
    ports = Ports()
    try:
        return launch(
            pod, Here(folder=run, code=folder, ports=ports, devices=Devices({}), replicas=1, shell={}, **here)
        )
    finally:
        ports.close()


def test_the_trainer_is_this_pythons_with_its_config_and_output_here(tmp_path: Path) -> None:
    found = translated(tmp_path, {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}, "trainer": TRAINER})
    config = tmp_path / "run/.tfgpu/worker-0.json"
    assert found.command == [sys.executable, "-m", "tfgpujob_trainer.main", "--config", str(config)]
    written = json.loads(config.read_text())
    assert written["output"]["directory"] == f"{tmp_path}/run"
    assert written["params"] == {"data": f"{tmp_path}/a.csv", "out": [f"{tmp_path}/run/x"], "other": "/models2/code"}
    assert found.grace_seconds == 120
    assert (found.environment["TFGPU_ATTEMPT"], found.environment["TFGPU_REPLICA_RESTART"]) == ("2", "1")
    assert "TF_CONFIG" not in found.environment


def test_models_of_an_image_are_a_folder_beside_the_code(tmp_path: Path) -> None:
    models = {"models": {"image": "m:1"}, "initialWeights": "/models/a.keras", "output": {"directory": "/output"}}
    trainer = {**TRAINER, **models}
    translated(tmp_path, {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}, "trainer": trainer})
    written = json.loads((tmp_path / "run/.tfgpu/worker-0.json").read_text())
    assert written["initialWeights"] == f"{tmp_path}/models/a.keras"


def test_a_claim_is_a_folder_beside_the_run(tmp_path: Path) -> None:
    trainer = {**TRAINER, "output": {"directory": "/models", "claim": "shared"}}
    translated(tmp_path, {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}, "trainer": trainer}, claim="shared")
    written = json.loads((tmp_path / "run/.tfgpu/worker-0.json").read_text())
    assert written["output"]["directory"] == f"{tmp_path}/claims/shared"
    assert written["params"]["out"] == [f"{tmp_path}/claims/shared/x"]


def test_variables_that_double_each_other_fill_no_memory(tmp_path: Path) -> None:
    env = [{"name": f"A{n}", "value": f"$(A{n - 1})" * 2 if n else "x" * 1024} for n in range(40)]
    container = {"name": "tensorflow", "command": ["true"], "env": env}
    worker = {"template": {"spec": {"containers": [container]}}}
    found = translated(tmp_path, {"strategy": "OneDevice", "image": "i", "replicaSpecs": {"worker": worker}})
    assert sum(map(len, found.environment.values())) < 3 << 20


def test_an_own_command_gets_its_variables_as_kubernetes_gives_them(tmp_path: Path) -> None:
    env = [
        {"name": "DATA", "value": "/data/$(TFGPU_JOB)"},
        {"name": "PRICE", "value": "$$(DATA) $(NOBODY)"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    container = {"name": "tensorflow", "image": "x", "command": ["run"], "args": ["$(DATA)"], "env": env}
    worker = {"template": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 7}}}
    found = translated(tmp_path, {"strategy": "OneDevice", "replicaSpecs": {"worker": worker}})
    assert found.command == ["run", "/data/a"]
    assert found.environment["PRICE"] == "$(DATA) $(NOBODY)"
    assert "KEY" not in found.environment
    assert found.grace_seconds == 7


def test_what_the_shell_says_of_another_job_is_not_inherited(tmp_path: Path) -> None:
    shell = {"TF_CONFIG": "{}", "TFGPU_ATTEMPT": "9", "HOME": "/h", "OMP_NUM_THREADS": "3"}
    spec = {"strategy": "OneDevice", "replicaSpecs": {"worker": {}}, "trainer": TRAINER}
    job = {"metadata": {"name": "a", "namespace": "ns", "uid": "u"}, "spec": spec}
    parsed = parse_job(job)
    assert isinstance(parsed, JobSpec)
    run = Folder(tmp_path / "run")
    run.open()
    here = Here(folder=run, code=tmp_path, ports=Ports(), devices=Devices({}), replicas=1, shell=shell)
    environment = launch(build_pod(job, parsed, resolve(parsed, CONFIG), Replica(Role.WORKER, 0, 1)), here).environment
    assert (environment["TFGPU_ATTEMPT"], environment["HOME"], environment["OMP_NUM_THREADS"]) == ("1", "/h", "3")
    assert "TF_CONFIG" not in environment


def test_a_supervised_program_is_run_by_this_pythons_supervisor(tmp_path: Path) -> None:
    containers = [{"name": "tensorflow", "command": ["python", "own.py"], "args": ["$(TFGPU_JOB)"]}]
    spec = {
        "strategy": "OneDevice",
        "image": "mine:1",
        "replicaSpecs": {"worker": {"template": {"spec": {"containers": containers}}}},
        "runPolicy": {"recovery": "InPlace"},
    }
    by = [sys.executable, "-m", "tfgpujob_trainer.own_program"]
    assert translated(tmp_path / "a", spec).command == [*by, "python", "own.py", "a"]
    assert translated(tmp_path / "b", spec, command=["python", "x.py"]).command == [*by, "python", "x.py"]


def devices(visible: tuple[str, ...], *, cpu_build: bool = False, **spec: Any) -> Devices:
    whole = {"strategy": "MultiWorkerMirrored", "replicaSpecs": {"worker": {"replicas": 2}}, "trainer": TRAINER, **spec}
    whole = {name: value for name, value in whole.items() if value is not None}
    parsed = parse_job({"metadata": {"name": "a"}, "spec": whole})
    assert isinstance(parsed, JobSpec), parsed
    return share_out(parsed, resolve(parsed, CONFIG), visible, cpu_build=cpu_build)


def test_each_gpu_goes_to_one_replica() -> None:
    found = devices(("0", "1", "2"))
    assert found.note == ""
    assert [found.environment((Role.WORKER, i)) for i in range(2)] == [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
    ]


AMD = {"gpu": {"resourceName": "amd.com/gpu"}, "replicaSpecs": {"chief": {}, "worker": {"gpus": 2}}}


@pytest.mark.parametrize(
    ("visible", "spec", "obstacle", "granted"),
    [
        ((), {}, "no GPU is here", "each worker gets 1 GPU"),
        (("0",), {"gpu": {"perReplica": 2}}, "the job's 4 GPUs are more than the 1 here", "each worker gets 2 GPUs"),
        (
            ("0", "1"),
            {"cpu_build": True},
            "the TensorFlow here is built for CPUs ('tfgpujob[local-gpu]' brings the one for GPUs)",
            "each worker gets 1 GPU",
        ),
        (
            ("0", "1", "2"),
            AMD,
            "amd.com/gpu is granted by clusters alone",
            "the chief gets 1 × amd.com/gpu, the worker gets 2 × amd.com/gpu",
        ),
    ],
)
def test_too_few_gpus_are_given_to_nobody_and_that_is_said_once(
    visible: tuple[str, ...], spec: dict[str, Any], obstacle: str, granted: str
) -> None:
    found = devices(visible, **spec)
    assert found.note == f"runs on the CPU, as {obstacle}; in a cluster {granted}"
    assert found.environment((Role.WORKER, 0))["CUDA_VISIBLE_DEVICES"] == "-1"


def test_a_program_with_a_strategy_of_its_own_finds_one_device_and_that_is_said() -> None:
    mirrored: dict[str, Any] = {"strategy": "Mirrored", "replicaSpecs": {"worker": {"gpus": 4}}}
    own = devices((), **mirrored, trainer=None, image="mine:1")
    assert own.note.endswith("; a program of its own finds one device here, so MirroredStrategy has one replica of 4")
    assert "replica of" not in devices((), **mirrored).note


def test_a_job_without_gpus_is_not_told_about_them() -> None:
    assert devices((), gpu={"perReplica": 0}) == Devices({})


@pytest.mark.parametrize(("build", "cpu"), [("False", True), ("True", False)])
def test_tensorflow_itself_says_how_it_was_built(
    build: str, cpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tensorflow-cpu and tensorflow side by side, one's files and both's metadata are there."""
    package = tmp_path / "tensorflow/python/platform"
    package.mkdir(parents=True)
    (tmp_path / "tensorflow/__init__.py").write_text("raise ImportError('not to be imported')")
    (package / "build_info.py").write_text(f"build_info = {{'is_cuda_build': {build}, 'is_rocm_build': False}}")
    for name in ("tensorflow", "tensorflow_cpu"):
        (tmp_path / f"{name}-2.21.0.dist-info").mkdir()
        (tmp_path / f"{name}-2.21.0.dist-info/METADATA").write_text(f"Name: {name}\nVersion: 2.21.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_cpu_build() is cpu
