"""`tfgpu doctor --gpu`'s pod: what it finds wrong, on the CPU with a pretended driver and nvidia-smi."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tests.trainer.driver import Driver
from tests.trainer.inprocess import strategy_over

from tfgpujob_trainer import gpu_doctor
from tfgpujob_trainer.cluster import gpus
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError


@pytest.fixture
def node(monkeypatch, tmp_path):
    """A pod of a node with two GPUs that works; `smi(ROWS)` has nvidia-smi say something else."""
    program = tmp_path / "nvidia-smi"

    def smi(rows):
        program.write_text(f"#!/bin/sh\ncat <<'ROWS'\n{rows}\nROWS\n")
        program.chmod(0o755)

    smi("NVIDIA H100, 580.159.04, 81559, 81000\nNVIDIA H100, 580.159.04, 81559, 81000")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("TFGPU_TERMINATION_LOG", str(tmp_path / "message"))
    monkeypatch.setattr(gpu_doctor, "driver_cuda", lambda: (13, 0))
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"cuda_version": "12.5.1"})
    monkeypatch.setattr(gpu_doctor, "prepare_devices", lambda *_, **__: ["/cpu:0", "/cpu:1"])
    monkeypatch.setattr(gpu_doctor, "build_strategy", lambda *_: strategy_over(2))
    return smi


def look(capsys, tmp_path: Path):
    """The exit code, and what is found: printed, and in the termination message."""
    code = gpu_doctor.main()
    record = json.loads((tmp_path / "message").read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == record["summary"]
    return code, record


def test_gpus_that_compute_are_told_of(node, capsys, tmp_path):
    code, record = look(capsys, tmp_path)
    assert (code, record["summary"]["problems"]) == (0, [])
    card = {"name": "NVIDIA H100", "driver": "580.159.04", "memoryMiB": 81559, "freeMiB": 81000}
    assert record["summary"]["gpus"] == [card, card]
    assert record["summary"] | {"driverCuda": "13.0", "tensorflowCuda": "12.5.1", "nccl": True} == record["summary"]


def fails():
    raise tf.errors.InternalError(None, None, "no kernel image is available\nmore")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "driver": ({"driver_cuda": lambda: None}, "the pod sees no NVIDIA driver"),
    "old driver": ({"driver_cuda": lambda: (11, 8)}, "the node's driver is for CUDA 11.8 at the most"),
    "product": ({"multiplies": lambda device: device != "/cpu:1"}, "a matrix product on /cpu:1 has a wrong result"),
    "kernels": ({"multiplies": lambda _: fails()}, "a matrix product on /cpu:0 fails: no kernel image is available$"),
    "NCCL": ({"adds_up": lambda *_: False}, "a sum over 2 GPUs by NCCL has a wrong result"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, node, monkeypatch, capsys, tmp_path):
    planted, words = FAULTS[fault]
    for name, value in planted.items():
        monkeypatch.setattr(gpu_doctor, name, value)
    code, record = look(capsys, tmp_path)
    (problem,) = record["summary"]["problems"]
    assert code == record["code"] == 2
    assert re.match(words, problem["what"])
    assert problem["fix"]
    assert problem["stops"]


def test_an_image_without_cuda_is_found(node, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(tf.sysconfig, "get_build_info", dict)
    code, record = look(capsys, tmp_path)
    assert (code, record["message"]) == (2, "TensorFlow in this image is built without CUDA")


def test_memory_that_another_process_has_is_a_note(node, capsys, tmp_path):
    node("NVIDIA H100, 580.159.04, 81559, 60000")
    code, record = look(capsys, tmp_path)
    (problem,) = record["summary"]["problems"]
    assert code == 0
    assert problem["what"] == "of 81559 MiB of NVIDIA H100 60000 are free, and this pod uses none"
    assert not problem["stops"]


def test_without_nvidia_smi_the_rest_is_looked_at(node, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    code, record = look(capsys, tmp_path)
    assert (code, record["summary"]["gpus"], record["summary"]["nccl"]) == (0, [], True)


def test_fewer_gpus_than_the_pod_was_granted_are_refused_with_the_trainers_words(node, monkeypatch, capsys, tmp_path):
    def refused(*_, **__):
        raise ConfigError("2 GPUs were granted and only 1 are visible to TensorFlow", "check the node's driver")

    monkeypatch.setattr(gpu_doctor, "prepare_devices", refused)
    code, record = look(capsys, tmp_path)
    assert (code, record["fix"]) == (2, "check the node's driver")


def test_a_wrong_sum_is_seen(node, monkeypatch):
    assert gpu_doctor.adds_up(["/cpu:0", "/cpu:1"], Environment())
    assert not gpu_doctor.adds_up(["/cpu:0"], Environment())  # two replicas add up to more than one alone


@pytest.mark.parametrize(("version", "found"), [(12080, (12, 8)), (13000, (13, 0))])
def test_the_driver_says_which_cuda_it_runs(version, found, monkeypatch):
    class Versioned(Driver):
        def cuDriverGetVersion(self, number):
            number._obj.value = version
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Versioned())
    assert gpus.driver_cuda() == found


def test_where_no_driver_is_there_is_none(monkeypatch):
    monkeypatch.setattr(gpus, "_DRIVER", "libnot-there.so")
    assert gpus.driver_cuda() is None
