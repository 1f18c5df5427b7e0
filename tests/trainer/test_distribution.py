"""keras.distribution on a mesh of logical CPU devices, in float64, held against one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.framework import error_interpolation
from tests.machine import PATIENCE
from tests.pages import ROOT
from tests.trainer.distribution_cases import CASES
from tests.trainer.harness import pod_environment

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.distribution.install import installed
from tfgpujob_trainer.distribution.refusals import in_words

EXACT = 1e-10


@pytest.fixture(scope="module")
def found():
    """What each case has found, by its name: a difference, or words."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.distribution_cases"],
        cwd=ROOT,
        env=pod_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=20 * PATIENCE,
    )
    lines = [line.removeprefix("case ") for line in done.stdout.splitlines() if line.startswith("case ")]
    assert len(lines) == len(CASES), done.stderr
    return dict(json.loads(line) for line in lines)


@pytest.mark.deep
@pytest.mark.parametrize("name", CASES)
def test_each_case_is_exact_or_refused(found, name):
    refused = CASES[name].refused
    if refused:
        assert isinstance(found[name], str), found[name]
        assert refused in found[name]
    else:
        assert isinstance(found[name], float), found[name]
        assert found[name] < EXACT


def test_nothing_of_it_is_left_behind():
    """Each name that is replaced is one that Keras and TensorFlow have, or mock.patch fails."""
    before = keras.Model.make_predict_function, keras.Variable.numpy, dict(os.environ)
    with installed():
        assert keras.Model.make_predict_function is not before[0]
        assert keras.distribution.list_devices("cpu") == ["cpu:0", "cpu:1"]
        assert keras.distribution.get_device_count() == 2
    assert before == (keras.Model.make_predict_function, keras.Variable.numpy, dict(os.environ))
    with pytest.raises(AttributeError):
        keras.distribution.get_device_count()


def test_another_number_of_processes_is_refused():
    with installed(), pytest.raises(ConfigError, match="names 2 processes, and the job has 1"):
        keras.distribution.initialize("10.0.0.1:1,10.0.0.2:1", 2, 0)
    with installed():
        keras.distribution.initialize()
        keras.distribution.initialize("10.0.0.1:1", 1, 0)


def test_a_device_that_is_not_there_is_named():
    with installed(), pytest.raises(ConfigError, match="cpu:7"):
        keras.distribution.DeviceMesh((2,), ("batch",), ["cpu:0", "cpu:7"]).backend_mesh  # noqa: B018


def test_what_is_outside_of_fit_is_refused():
    """A loop of the script's own in a tf.function, and an export, would be traced without a mesh."""
    with installed(), keras.distribution.DataParallel().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        with pytest.raises(ConfigError, match=r"tf.function of the script's own"):
            tf.function(model, autograph=False)(tf.zeros([2, 2]))


def test_ragged_rows_are_refused():
    with installed(), keras.distribution.DataParallel().scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        with pytest.raises(ConfigError, match="RaggedTensor"):
            model.predict(tf.data.Dataset.from_tensors(tf.ragged.constant([[1.0], [1.0, 2.0]])))
    assert dtensor.get_default_mesh() is None, "what comes after it is on no mesh"


def test_what_a_divided_model_returns_can_be_read():
    layout = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1, 2), ("batch", "model"), ["cpu:0", "cpu:1"]))
    layout[".*kernel"] = (None, "model")
    with installed(), keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch").scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, kernel_initializer="ones")])
        assert np.asarray(model(tf.ones([3, 2]))).tolist() == [[2.0] * 4] * 3


def test_a_transposed_batch_has_another_way_out():
    said = "a.py: error: TransposeOp SPMD needs communication\n at tensorflow/dtensor/mlir/a.cc"
    with pytest.raises(ConfigError) as raised, in_words():
        raise tf.errors.InternalError(None, None, said)
    assert "transpose_b=True" in raised.value.fix


def test_a_long_error_is_read_at_once():
    with installed():
        assert error_interpolation.parse_message("{{node a}}" + " " * 10**6)[1:] == ([], [])
        assert error_interpolation.parse_message("{{node a}}")[2]


def test_a_mesh_needs_its_devices():
    with installed(), pytest.raises(ConfigError, match="8 devices, and 2 are given") as raised:
        keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
    assert "--gpus 8" in raised.value.fix
