"""GPUs before the first step: on plain values, and through tf.config with devices that are pretended."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tests.trainer.driver import Driver

from tfgpujob_trainer.cluster import devices, gpus
from tfgpujob_trainer.cluster.devices import prepare_devices
from tfgpujob_trainer.cluster.gpus import Gpu
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError

TWO = (Gpu("H100", 81559), Gpu("H100", 81559))


@pytest.mark.parametrize(
    ("visible", "granted", "used"), [(TWO, 2, 2), (TWO, 1, 1), (TWO, None, 2), (TWO, 0, 0), ((), None, 0), ((), 0, 0)]
)
def test_as_many_are_used_as_were_granted(visible, granted, used):
    assert len(gpus.choose(visible, Environment(gpus=granted))) == used


HIDDEN = "remove it from the container's env"


@pytest.mark.parametrize(
    ("visible", "env", "hidden_by", "problem", "fix"),
    [
        ((), {"gpus": 1}, None, "1 GPU was granted and none is visible", "check the node's driver with nvidia-smi"),
        (TWO, {"gpus": 4}, None, "4 GPUs were granted and only 2 are visible", "check the node's driver"),
        ((), {"gpus": 2}, "", "none is visible to TensorFlow: CUDA_VISIBLE_DEVICES is ''", HIDDEN),
        (TWO[:1], {"gpus": 2}, "0", "only 1 are visible to TensorFlow: CUDA_VISIBLE_DEVICES is '0'", HIDDEN),
        (TWO, {"memory_limit_mib": 99999}, None, "limitMiB is 99999, and H100 has 81559 MiB", "use at most 81559"),
        (
            TWO,
            {"memory_limit_mib": 48000, "processes_per_gpu": 2},
            None,
            "limitMiB is 48000 for each of 2 processes, and H100 has 81559 MiB",
            "use at most 40779, or leave it out: memory then grows as it is needed",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(visible, env, hidden_by, problem, fix):
    with pytest.raises(ConfigError) as caught:
        gpus.choose(visible, Environment(**env), hidden_by=hidden_by)
    assert problem in str(caught.value)
    assert caught.value.fix.startswith(fix)


@pytest.mark.parametrize(
    ("used", "env", "line"),
    [
        (TWO, Environment(gpus=2), "devices: 2 × H100, 81559 MiB, memory grows"),
        (
            TWO[:1],
            Environment(gpus=1, memory_limit_mib=9000, processes_per_gpu=2),
            (
                "devices: 1 × H100, 81559 MiB, at most 9000 MiB are taken by each of 2 processes; 2 are visible, the "
                "others are left alone"
            ),
        ),
        (
            (Gpu("A"), Gpu("B", 100)),
            Environment(memory_growth=False),
            "devices: 2 × A and B, 100 MiB, all memory is taken at once",
        ),
        ((), Environment(gpus=0), "devices: CPU, 4 cores"),
        ((), Environment(gpus=2, strategy="Mirrored"), "devices: CPU, 4 cores, as 2 replicas"),
        ((), Environment(gpus=2, strategy="OneDevice"), "devices: CPU, 4 cores, as 2 devices"),
    ],
)
def test_what_is_computed_on_is_said(used, env, line):
    assert gpus.describe(used, env, visible=2, cores=4, count=env.gpus or 1) == line


@pytest.fixture
def pretended(monkeypatch):
    """Two GPUs of 80 and 40 GiB below tf.config; TensorFlow's settings for them."""
    told = []
    physical = [SimpleNamespace(name=f"GPU:{i}") for i in range(2)]
    real = tf.config.list_physical_devices
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: physical if kind == "GPU" else real(kind))
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: {"device_name": f"type {gpu.name}"})
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda devices, _: told.append(f"visible {[d.name for d in devices]}")
    )
    monkeypatch.setattr(
        tf.config,
        "set_logical_device_configuration",
        lambda gpu, parts: told.append(f"{gpu.name} limit {parts[0].memory_limit}"),
    )
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda gpu, grows: told.append(f"{gpu.name} grows {grows}")
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver(80 << 30, 40 << 30))
    return told


@pytest.fixture
def said(pretended, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(devices, "say_once", said.append)
    return said


def test_tensorflow_is_told_which_gpus_and_how_much_of_them(pretended, said):
    found = prepare_devices(Environment(gpus=2, memory_limit_mib=9000, memory_growth=False))
    assert found == ["/gpu:0", "/gpu:1"]
    assert pretended == ["visible ['GPU:0', 'GPU:1']", "GPU:0 limit 9000", "GPU:1 limit 9000"]
    assert said == ["devices: 2 × type GPU:0, 81920 MiB and type GPU:1, 40960 MiB, at most 9000 MiB are taken"]


def test_gpus_that_were_not_granted_are_left_alone(pretended, said):
    found = prepare_devices(Environment(gpus=1))
    assert (found, pretended) == (["/gpu:0"], ["visible ['GPU:0']", "GPU:0 grows True"])
    assert said[0].endswith("; 2 are visible, the others are left alone")


def test_a_limit_beyond_the_smaller_gpu_is_refused_before_tensorflow_is_told_anything(pretended):
    with pytest.raises(ConfigError, match="limitMiB is 50000, and type GPU:1 has 40960 MiB"):
        prepare_devices(Environment(gpus=2, memory_limit_mib=50000))
    assert pretended == []


def test_a_driver_that_shows_other_gpus_than_tensorflow_says_nothing_of_their_memory(said, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver(1 << 30))
    prepare_devices(Environment(gpus=2, memory_limit_mib=50000))
    assert "MiB and" not in said[0]


def test_a_build_for_other_gpus_than_nvidias_does_not_fall_back_to_the_cpu(monkeypatch):
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: False)
    monkeypatch.setattr(tf.test, "is_built_with_gpu_support", lambda: True)
    with pytest.raises(ConfigError, match="1 GPU was granted and none is visible"):
        prepare_devices(Environment(gpus=1))
