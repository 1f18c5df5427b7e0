"""Programs with a training loop of their own, run by one command: what they are, that they run, and why they can't."""

from __future__ import annotations

import os
import sys
from bdb import BdbQuit
from pathlib import Path
from pdb import Pdb

import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.harness import typed

from tfgpujob_trainer.contract import config, script
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.script.causes import with_cause
from tfgpujob_trainer.script.loop import _tf_config_is_the_jobs

ONE = '{"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 0}}'
TWO = '{"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 0}}'


def loop(strategy: str = "MirroredStrategy", run: str = "run") -> str:
    """A program in the form of TensorFlow's guide."""
    return LOOP.replace("STRATEGY", strategy).replace("RUN", run)


def last_loss() -> float:
    """What the program has to print, by NumPy."""
    weight = bias = loss = 0.0
    for x in np.arange(64.0).reshape(4, 16):
        error = weight * x + bias - 2 * x
        loss = (error**2).sum() / 16
        weight, bias = weight - 2e-4 * (error * x).sum() / 16, bias - 2e-4 * error.sum() / 16
    return float(loss)


LOOP = """
import tensorflow as tf

strategy = tf.distribute.STRATEGY()
rows = tf.reshape(tf.range(64.0), (64, 1))
data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((rows, 2 * rows)).batch(16))
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1, kernel_initializer="zeros")])
    optimizer = tf.keras.optimizers.SGD(1e-4)


@tf.function
def train(batch):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x) - y) ** 2) / 16
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return strategy.reduce("SUM", strategy.RUN(step, args=batch), axis=None)


for batch in data:
    loss = train(batch)
print("replicas", strategy.num_replicas_in_sync, "loss", f"{float(loss):.1f}", flush=True)
open("model.txt", "w").write("trained")
"""
LATE = """
import json, os, time
time.sleep(3 * json.loads(os.environ["TF_CONFIG"])["task"]["index"])  # it saves, say
"""
COORDINATOR = """
import tensorflow as tf

strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)


@tf.function
def step():
    total.assign_add(1.0)


for _ in range(8):
    coordinator.schedule(step)
coordinator.join()
print("total", float(total.read_value()), flush=True)
"""


def test_what_it_does_by_itself_is_told_by_its_text(tmp_path):
    file = tmp_path / "a.py"
    file.write_text(COORDINATOR)
    assert not script.starts_a_server(file)
    assert not script.heeds_stops(file)
    assert script.has_a_strategy(file)
    file.write_text("with tf.GradientTape() as tape: ...")
    assert not script.has_a_strategy(file)
    file.write_text("import signal\nfrom tensorflow.distribute import Server\n" + COORDINATOR)
    assert script.starts_a_server(file)
    assert script.heeds_stops(file)


def test_several_processes_on_a_gpu_are_not_for_a_loop(tmp_path):
    (tmp_path / "a.py").write_text(loop())
    env = Environment(strategy="MultiWorkerMirrored", code_directory=tmp_path, processes_per_gpu=2)
    with pytest.raises(ConfigError, match=r"a\.py has a training loop of its own"):
        script.find(config.parse({"entrypoint": "a.py"}), env)


def test_a_method_that_is_gone_is_named_with_the_one_in_its_place():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with pytest.raises(AttributeError) as caught:
        strategy.experimental_run_v2(print)
    known = with_cause(caught.value)
    assert isinstance(known, ConfigError)
    assert "strategy.experimental_run_v2() is strategy.run() in this TensorFlow, at test_loops.py:" in str(known)
    assert known.fix == "write strategy.run( there"

    @tf.function
    def traced():
        return strategy.experimental_run_v2(print)

    with pytest.raises(AttributeError) as caught:
        traced()
    assert "at test_loops.py:" in str(with_cause(caught.value))
    other = AttributeError("'int' object has no attribute 'x'")
    assert with_cause(other) is other


def test_a_checkpoint_that_parameter_servers_cannot_write_is_named():
    said = (
        "ckpt/ckpt-1_temp; No such file or directory\n\t [[{{node SaveV2}}]]\nAdditional GRPC error information from "
        "remote target /job:ps/replica:0/task:0/device:CPU:0 while calling /tensorflow.eager.EagerService"
    )
    known = with_cause(tf.errors.NotFoundError(None, None, said))
    assert isinstance(known, ConfigError)
    assert str(known).startswith("ckpt/ckpt-1 is a checkpoint of which each parameter server writes its part")
    assert "--claim NAME" in known.fix


def test_a_terminal_that_a_job_does_not_have_is_named(monkeypatch):
    with Path(os.devnull).open() as nothing, Path(os.devnull).open("w") as nowhere:
        monkeypatch.setattr(sys, "stdin", nothing)

        def pauses():
            Pdb(stdin=nothing, stdout=nowhere).set_trace()
            return 1

        for asks in (input, pauses):
            with pytest.raises((EOFError, BdbQuit)) as caught:
                asks()
            assert " needs a terminal, and a job has none, at test_loops.py:" in str(with_cause(caught.value))
    other = EOFError("Compressed file ended before the end-of-stream marker was reached")
    assert with_cause(other) is other


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("get_ipython()", "get_ipython() exists in a notebook only, at a.py:1", "remove the line"),
        (
            "raise Exception('URL fetch failure on https://a/x.npz: None -- [Errno -2] unknown')",
            "a download has failed: URL fetch failure on https://a/x.npz: None -- [Errno -2] unknown, at a.py:1",
            "download it where there is a network",
        ),
    ],
)
def test_what_a_pod_lacks_is_named(text, problem, fix):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        exec(compile(text, "a.py", "exec"), {})
    known = with_cause(caught.value)
    assert isinstance(known, ConfigError)
    assert str(known) == problem
    assert known.fix.startswith(fix)


def test_a_tpu_is_named_as_what_is_looked_for():
    with pytest.raises(Exception) as caught:  # noqa: PT011 (of TensorFlow's own choice)
        tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
    assert "TPUClusterResolver looks for a TPU" in str(with_cause(caught.value))


@pytest.mark.parametrize(
    ("jobs", "set_to", "refused"), [(None, ONE, False), (None, TWO, True), (ONE, TWO, True), (TWO, TWO, False)]
)
def test_a_program_does_not_set_another_tf_config(jobs, set_to, refused, monkeypatch):
    if jobs is None:
        monkeypatch.delenv("TF_CONFIG", raising=False)
    else:
        monkeypatch.setenv("TF_CONFIG", jobs)
    with _tf_config_is_the_jobs(Path(__file__)):
        if refused:
            with pytest.raises(ConfigError, match=r"the program sets TF_CONFIG at test_loops.py:\d+") as caught:
                os.environ["TF_CONFIG"] = set_to
            assert "remove the line" in caught.value.fix
        else:
            monkeypatch.setenv("TF_CONFIG", set_to)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("text", "flags", "code", "said"),
    [
        (loop(), ["--gpus", "2"], 0, f"replicas 2 loss {last_loss():.1f}"),
        (loop("MultiWorkerMirroredStrategy"), ["--workers", "2"], 0, f"replicas 2 loss {last_loss():.1f}"),
        (loop("MultiWorkerMirroredStrategy") + LATE, ["--workers", "2"], 0, f"replicas 2 loss {last_loss():.1f}"),
        (COORDINATOR, ["--workers", "2"], 0, "total 8.0"),
        ("import tensorflow as tf\nwith tf.GradientTape(): ...", ["--workers", "2"], 0, "a model of its own"),
        (loop(run="experimental_run_v2"), [], 1, "write strategy.run( there"),
        (f"import os\nos.environ['TF_CONFIG'] = '{TWO}'\n" + loop("MultiWorkerMirroredStrategy"),
         ["--workers", "2"], 1, "the program sets TF_CONFIG at train.py:2"),
    ],
    ids=["devices", "workers", "one is late", "coordinator", "alone", "run_v2", "TF_CONFIG"],
)  # fmt: skip
def test_one_command_runs_a_loop(text, flags, code, said, tmp_path):
    ended, printed = typed(tmp_path, text, flags)
    assert (ended, said in printed) == (code, True), printed
    assert "of its own, which runs as it is" in printed
    assert (tmp_path / "model.txt").exists() is ("replicas" in said)
    assert "Traceback" not in printed
    logs = "".join(file.read_text() for file in tmp_path.glob("runs/*/logs/*.log"))
    assert code or "StartAbort" not in logs
