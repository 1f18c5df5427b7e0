"""docs/questions.md shows the lines that the trainer prints; the techniques of docs/trainer.md train."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import yaml
from tests.pages import FENCE

from tfgpujob_trainer.contract import config, entrypoint, environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data import splits
from tfgpujob_trainer.data.sources.arrays import arrays
from tfgpujob_trainer.data.sources.read import source
from tfgpujob_trainer.model import optimizer_takeover, own_steps

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "questions.md").read_text()
CONFIG = {"entrypoint": "digits", "globalBatchSize": 128, "epochs": 1}


def model(loss="mse", **optimizer):
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.compile(keras.optimizers.Adam(**optimizer), loss)
    return net


def tf_config(addresses, index=0):
    value = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {"TF_CONFIG": json.dumps(value)}


class OwnStep(keras.Sequential):
    def train_step(self, *_):
        return {}


def own_step():
    net = OwnStep([keras.Input((2,)), keras.layers.Dense(1)])
    net.compile("adam", "mse")
    return net


def too_small():
    data = arrays((tf.zeros([10, 2]).numpy(), tf.zeros([10]).numpy()), "train")
    splits.make_schedule(config.parse({**CONFIG, "globalBatchSize": 2}), data, 4, 1)


MISTAKES: dict[str, Callable[[], object]] = {
    "accumulation said twice": lambda: optimizer_takeover.take_over_optimizer(
        model(gradient_accumulation_steps=4), "Mirrored", 8
    ),
    "an unreduced loss": lambda: optimizer_takeover.take_over_optimizer(
        model(keras.losses.MeanSquaredError(reduction="none")), "Mirrored", None
    ),
    "gradients applied every step *and* on accumulation, in a train_step of its own": lambda: (
        own_steps.leave_optimizers(own_step(), "Mirrored", 4)
    ),
    "no TF_CONFIG": lambda: environment.read({"TFGPU_STRATEGY": "MultiWorkerMirrored"}),
    "one worker of two in TF_CONFIG": lambda: environment.read(tf_config(["10.0.0.1:2222"], index=1)),
    "fixed ports: one for two tasks of a machine": lambda: environment.read(
        tf_config(["127.0.0.1:2222", "127.0.0.1:2222"])
    ),
    "batched in data()": lambda: source(tf.data.Dataset.range(8).batch(2), "train"),
    "shuffled in data()": lambda: source(tf.data.Dataset.range(8).shuffle(8), "train"),
    "a batch smaller than the replicas": too_small,
    "a misspelt param": lambda: entrypoint.load("digits", {"unit": 3}, Path("/nowhere")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_page_shows_the_line_that_is_printed(mistake):
    with pytest.raises(ConfigError) as caught:
        MISTAKES[mistake]()
    assert f"| {mistake} | `{caught.value.outcome().line()}` |" in PAGE


def test_the_page_shows_no_other_mistakes():
    table = PAGE[PAGE.index("## Common mistakes") :]
    rows = re.findall(r"^\| (.+?) \| `", table, re.MULTILINE)
    assert rows == list(MISTAKES)


@pytest.mark.deep
def test_the_techniques_of_the_trainers_page_train_together(launch_here, tmp_path):
    """Its module with its settings, on two workers that end with equal weights."""
    section = (ROOT / "docs/trainer.md").read_text().partition("## Techniques\n")[2]
    (_, module), (_, job) = FENCE.findall(section)[:2]
    (tmp_path / "techniques.py").write_text(module)
    settings = yaml.safe_load(job)["spec"]["trainer"]
    del settings["code"]
    env = {worker: {"TFGPU_CODE_DIR": str(tmp_path)} for worker in range(2)}
    tasks = launch_here.start_workers({**settings, "output": {"directory": str(tmp_path / "output")}}, env=env)
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log
    assert len({task.ended["summary"]["weightsSha256"] for task in tasks}) == 1
    assert "global batch 64 = 8 × 2 workers × 4 micro-batches" in tasks[0].log
    assert (tmp_path / "output/saved_model").is_dir()
