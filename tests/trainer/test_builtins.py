"""The built-in entrypoints; and a program of the user's own, with its own strategy, beside the trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.machine import PATIENCE
from tests.trainer.harness import free_ports

from tfgpujob_trainer.contract import entrypoint

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = {"convnet": {"rows": 512}, "transformer": {"rows": 1024, "blocks": 1}}


@pytest.mark.parametrize("name", ["convnet", pytest.param("transformer", marks=pytest.mark.deep)])
def test_what_the_example_trains_learns(name, launch_here, tmp_path):
    """Smaller than in the example, and alone, so that it ends in seconds."""
    example = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["spec"]["trainer"]
    changes = {"params": {**example["params"], **SMALL[name]}, "globalBatchSize": 32, "epochs": 4}
    task = launch_here.start({**example, **changes, "output": {"directory": str(tmp_path / "out")}}).ends(0)
    assert task.ended["summary"]["splits"]["test"]["accuracy"] >= 0.5  # by chance 0.1


def test_resnet50_has_its_weights_and_an_input_of_any_size():
    module = entrypoint.load("resnet50", {"size": 32, "rows": 8}, Path("/nowhere"))
    assert module.model().count_params() == 25_636_712
    x, y = module.data("train")
    assert (x.shape, x.dtype, y.shape) == ((8, 32, 32, 3), np.uint8, (8,))


@pytest.mark.parametrize("name", ["convnet", "resnet50", "transformer"])
def test_made_up_data_is_the_same_on_every_worker(name):
    params = {"rows": 8, "size": 32} if name == "resnet50" else {"rows": 8}
    first, second = (entrypoint.load(name, params, Path("/nowhere")).data("train") for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


SCRIPT = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = tf.Variable(1.0)

@tf.function
def step():
    def replica():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("sum", tf.cast(context.replica_id_in_sync_group + 1, tf.float32) * weight)
    return strategy.run(replica)

print("sum", float(step()), "of", strategy.num_replicas_in_sync)
"""


@pytest.mark.deep
def test_a_program_of_the_users_own_runs_unchanged_with_the_pods_tf_config(tmp_path):
    """No trainer: the interpreter of the image, TF_CONFIG, and a script that knows nothing of us."""
    (tmp_path / "own.py").write_text(SCRIPT)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    processes = []
    for index in range(2):
        tf_config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        env = {**os.environ, "TF_CONFIG": json.dumps(tf_config), "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [sys.executable, "own.py"]
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert outputs == ["sum 3.0 of 2\n"] * 2
