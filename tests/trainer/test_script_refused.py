"""What is recognised in a script's source, and what is refused before anything is trained."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
from tests.trainer.inprocess import takeover_of

from tfgpujob_trainer.contract import config, script
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.script.call import FitCall

MODULE = "def model(): ...\ndef data(split): ...\n"
FIT = "import keras\nmodel = keras.Sequential()\nmodel.fit(1)\n"


@pytest.mark.parametrize(
    ("text", "fields", "message", "fix"),
    [
        ("x = 1\n", {}, "a.py has no function model() and data(), and calls no fit", "define model() and data(split)"),
        ("def model(): ...", {}, "a.py has no function data(), and calls no fit", "define model() and data(split)"),
        ("def f(:", {}, "a.py is no Python file: invalid syntax, at a.py:1", "correct it"),
        (
            "x = 1\n  %time f()",
            {},
            "%time f() is a notebook's command, at a.py:2",
            "remove all lines that begin with %",
        ),
        ("model.fit_generator(x)", {}, "a.py calls fit_generator(), which Keras 3 does not have", "call fit()"),
        ("import torch.nn", {}, "a.py is a PyTorch program", "write it with TensorFlow"),
        (FIT, {"epochs": 2}, "trainer.epochs is set, and a.py is a plain script", "remove it: fit(epochs=...) says it"),
        (FIT, {"params": {"a": 1}}, "trainer.params is set, and a.py", "remove it: there is no model()"),
        (MODULE, {"args": ["--a"]}, "trainer.args is set, and a.py is no script", "use params: those go to model()"),
        (MODULE, {"epochs": 2}, "trainer.globalBatchSize is missing, and a.py has model() and data()", "set it"),
        (MODULE, {"globalBatchSize": 2}, "trainer.epochs is missing, and a.py has model() and data()", "set it"),
    ],
)
def test_what_a_file_cannot_be_is_refused_before_it_runs(text, fields, message, fix, tmp_path):
    (tmp_path / "a.py").write_text(text)
    parsed = config.parse({"entrypoint": "a.py", **fields})
    with pytest.raises(ConfigError) as caught:
        script.find(parsed, Environment(code_directory=tmp_path))
    assert message in str(caught.value)
    assert caught.value.fix.startswith(fix)


@pytest.mark.parametrize(
    ("first", "x", "message"),
    [
        (
            None,
            iter([(np.ones((4, 2)), np.ones(4))]),
            "a generator, and under ParameterServer a worker may be given a batch once more",
        ),
        (FitCall(x=np.ones((4, 2))), np.ones((4, 2)), "a second fit() with other data, and under ParameterServer"),
    ],
)
def test_what_parameter_servers_cannot_do_with_a_script_is_refused(first, x, message, tmp_path):
    env = Environment(strategy="ParameterServer", role="worker")
    takeover = takeover_of(tmp_path, env=env)
    takeover._served = first
    y = np.ones(4) if isinstance(x, np.ndarray) else None
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        takeover.fit(keras.Sequential([keras.layers.Dense(1)]), FitCall(x=x, y=y, steps_per_epoch=1))
    assert caught.value.fix.endswith("or use MultiWorkerMirrored")


def test_a_mean_of_several_batches_is_refused_with_averages_of_weights(tmp_path):
    takeover = takeover_of(tmp_path)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=4, use_ema=True), "mse")
    with pytest.raises(ConfigError, match="gradient_accumulation_steps=4, with use_ema=True") as caught:
        takeover.fit(model, FitCall(x=np.ones((9, 2)), y=np.ones(9), batch_size=3))
    assert caught.value.fix.startswith("leave it out and make batches 4 times as large")
