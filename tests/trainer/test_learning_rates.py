"""The learning-rate range test: where a quadratic diverges is known."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest
from tests.machine import PATIENCE
from tests.pages import shell, typed_by
from tests.trainer.harness import trainer_config

from tfgpujob_trainer.advise.rates import judge, rates_advice

INPUT = 2.0
DIVERGES = 1 / INPUT**2
"""The loss (2w)^2 has curvature L = 8, and a step of more than 2/L makes it rise."""
QUADRATIC = f"""
import keras
import numpy as np

keras.config.set_floatx("float64")

def model(rate=0.1):
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    net.compile(keras.optimizers.SGD(rate), "mse")
    return net

def data(split):
    return (np.full((64, 1), {INPUT}), np.zeros((64, 1))) if split == "train" else None
"""
SCHEDULED = QUADRATIC.replace("SGD(rate)", "SGD(keras.optimizers.schedules.ExponentialDecay(rate, 10, 0.9))")


def advised(folder: Path, text: str, **fields: object) -> subprocess.CompletedProcess[str]:
    (folder / "quadratic.py").write_text(text)
    settings = trainer_config(folder / "output", entrypoint="quadratic.py", **fields)
    (folder / "trainer.json").write_text(json.dumps(settings))
    (words,) = typed_by(__file__)
    return subprocess.run(
        words,
        cwd=folder,
        env=shell(folder, TFGPU_CODE_DIR=str(folder)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_quadratic_diverges_where_its_curvature_says(tmp_path):
    done = advised(tmp_path, QUADRATIC)
    assert done.returncode == 0, done.stderr
    header, *rows, sentence, line = done.stdout.splitlines()
    found = json.loads(line)
    rates, losses = found["rates"], found["losses"]
    assert header.split() == ["learning", "rate", "loss"]
    assert [float(row.split()[1]) for row in rows] == pytest.approx(losses, rel=1e-5)
    factor = rates[1] / rates[0]
    assert rates[-1] / rates[0] == pytest.approx(factor ** (len(rates) - 1))
    weight = 1.0
    for rate, loss in zip(rates, losses, strict=True):  # each loss is of a step of gradient descent
        assert loss == pytest.approx((INPUT * weight) ** 2, rel=1e-6, abs=1e-200)
        weight *= 1 - 8 * rate
    assert abs(math.log(found["risesFrom"] / DIVERGES)) < 1.01 * math.log(factor)
    assert rates[0] < found["fallsFastestAt"] < DIVERGES / 2
    assert f"to below {found['risesFrom']:.2g}, where it rises" in sentence
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"bin", "quadratic.py", "trainer.json"}


SCRIPT = f"""
import keras
import numpy as np

keras.config.set_floatx("float64")
net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
net.compile(keras.optimizers.SGD(0.1), "mse")
net.fit(np.full((64, 1), {INPUT}), np.zeros((64, 1)), batch_size=32, epochs=1, validation_split=0.5)
print("it goes on behind its fit()")
"""


@pytest.mark.deep
def test_a_plain_script_is_tested_in_its_first_fit(tmp_path):
    own = {"globalBatchSize": None, "epochs": None}
    of_module, of_script = tmp_path / "module", tmp_path / "script"
    found = []
    for folder, text, fields in ((of_module, QUADRATIC, {}), (of_script, SCRIPT, own)):
        folder.mkdir()
        done = advised(folder, text, **fields)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found[0] == found[1]
    assert "goes on" not in done.stdout + done.stderr
    assert {path.name for path in of_script.iterdir()} - {"__pycache__"} == {"bin", "quadratic.py", "trainer.json"}


def test_a_schedule_cannot_be_tested(tmp_path):
    done = advised(tmp_path, SCHEDULED)
    assert done.returncode == 2
    assert "is a schedule (give the optimizer a number for this test)" in done.stderr


def test_the_sentence_says_what_was_not_seen():
    rates = [10.0**i for i in range(-9, 0)]
    falling, flat = [9.0, 8.9, 8.5, 7, 5, 3, 2.5, 2.4, 2.3], [1.0] * 9
    assert "try higher ones too" in rates_advice(rates, judge(falling, ended=False))
    assert "does not fall" in rates_advice(rates, judge(flat, ended=False))
    assert "does not fall" in rates_advice([], judge([], ended=True))
