"""Files that several workers save to the path in the script: complete, in any order of the workers, and none is
lost.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, nullcontext
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.utils import file_utils
from tensorflow.python.framework import ops
from tests.trainer.inprocess import session_of, strategy_over

from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.exits import ConfigError, ExitedError
from tfgpujob_trainer.script import saving
from tfgpujob_trainer.script.job_end import JobEnd
from tfgpujob_trainer.script.run import _run, as_the_chief, replacements
from tfgpujob_trainer.script.saving import publish, shared_folders
from tfgpujob_trainer.script.scope import JobScope


def made(folder, text):
    (folder / "variables").mkdir(parents=True)
    (folder / "variables" / "data").write_text(text)
    return folder


def test_a_file_takes_the_place_of_the_one_that_is_there(tmp_path):
    (tmp_path / "new").write_text("new")
    (tmp_path / "model.keras").write_text("old")
    publish(tmp_path / "new", tmp_path / "model.keras", is_chief=False)
    assert (tmp_path / "model.keras").read_text() == "new"


@pytest.mark.parametrize("is_chief", [True, False])
def test_each_worker_has_its_folder(tmp_path, is_chief):
    publish(made(tmp_path / "new", "new"), tmp_path / "model", is_chief=is_chief)
    assert (tmp_path / "model/variables/data").read_text() == "new"


def test_a_folder_that_another_worker_has_put_below_is_left_alone(tmp_path):
    """saved_model of the chief, saved_model/worker_tmp_1 of worker 1, which was there first."""
    made(tmp_path / "model/worker_tmp_1", "other")
    publish(made(tmp_path / "new", "new"), tmp_path / "model", is_chief=True)
    assert (tmp_path / "model/variables/data").read_text() == "new"
    assert (tmp_path / "model/worker_tmp_1/variables/data").read_text() == "other"


def test_the_chiefs_folder_stays_when_another_worker_saves_there_too(tmp_path):
    made(tmp_path / "model", "chief")
    publish(made(tmp_path / "new", "new"), tmp_path / "model", is_chief=False)
    assert (tmp_path / "model/variables/data").read_text() == "chief"


def test_a_worker_of_parameter_servers_finds_the_chiefs_tf_config():
    """As the operator writes a worker's: its own address by its index, and the servers."""
    own = {
        "cluster": {"worker": {"1": "w1:2222"}, "ps": ["p0:2222", "p1:2222"]},
        "task": {"type": "worker", "index": 1},
    }
    seen = json.loads(as_the_chief(json.dumps(own)))
    assert seen["task"] == {"type": "chief", "index": 0}
    assert seen["cluster"]["worker"] == ["w1:2222"]
    assert seen["cluster"]["ps"] == ["p0:2222", "p1:2222"]
    assert len(seen["cluster"]["chief"]) == 1


def test_a_callback_saves_in_a_folder_that_another_worker_makes_at_that_moment(tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    callback = keras.callbacks.ModelCheckpoint(str(tmp_path / "shared/{epoch}.keras"))
    callback.set_model(model)
    exists = file_utils.exists

    def exists_too_late(path):
        found = exists(path)
        (tmp_path / "shared").mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(file_utils, "exists", exists_too_late)
    with shared_folders():
        callback.on_epoch_end(0, {})
    assert (tmp_path / "shared/1.keras").exists()


@pytest.fixture
def in_a_script(request):
    """What a script finds in place of Keras' own, in the scope of the job's strategy."""
    takeover: Any = SimpleNamespace(held=SimpleNamespace(as_compiled=lambda _: nullcontext()))
    devices = getattr(request, "param", 1)
    with ExitStack() as stack:
        scope = stack.enter_context(JobScope(strategy_over(devices)))
        session = session_of(config.parse({"entrypoint": "a.py"}), devices)
        for replaced in replacements(Path("a.py"), takeover, scope, session, JobEnd(has_peers=False)):
            stack.enter_context(replaced)
        yield scope


@pytest.mark.parametrize(
    ("place", "save", "name"),
    [
        (keras, "Model.save", "a.keras"),
        (keras, "models.save_model", "a.keras"),
        (keras, "saving.save_model", "a.h5"),
        (tf, "keras.models.save_model", "a.keras"),
        (keras, "Model.save_weights", "a.weights.h5"),
        (keras, "saving.save_weights", "a.weights.h5"),
        (keras, "Model.export", "a"),
    ],
)
@pytest.mark.usefixtures("in_a_script")
def test_whatever_saves_a_model_does_it_in_one_go(place, save, name, tmp_path, monkeypatch):
    published = []
    monkeypatch.setattr(saving, "publish", lambda made, path, **_: published.append((made.exists(), path)))
    attrgetter(save)(place)(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), tmp_path / name)
    assert published == [(True, tmp_path / name)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("in_a_script", [1, 2], indirect=True)
@pytest.mark.usefixtures("in_a_script")
def test_the_functions_of_a_saved_model_are_called_as_without_a_strategy(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.export(tmp_path / "a", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "a")
    for function in (loaded.serve, keras.layers.TFSMLayer(tmp_path / "a", "serve")):
        assert np.asarray(function(np.ones((3, 1)))) == pytest.approx(np.asarray(model(np.ones((3, 1)))))


@pytest.mark.parametrize("clear", [keras.utils.clear_session, ops.reset_default_graph])
def test_a_cleared_session_keeps_the_scope_of_the_strategy(clear, in_a_script):
    """The second is what Keras calls after an `import tensorflow.compat.v1`."""
    clear()
    assert tf.distribute.get_strategy() is in_a_script.strategy
    with in_a_script.left():
        assert not tf.distribute.has_strategy()
    assert tf.distribute.get_strategy() is in_a_script.strategy


def test_a_script_may_be_in_a_device_of_its_own(in_a_script, capsys):
    """As in `with tf.device("/CPU:1"): model.fit(...)`, once and again."""
    for _ in range(2):
        with tf.device("/cpu:1"), tf.device("/cpu:0"):
            for _ in range(2):
                with in_a_script.left():
                    assert not tf.distribute.has_strategy()
                assert tf.distribute.get_strategy() is in_a_script.strategy
                assert tf.constant(1).device.endswith("CPU:0")
        with in_a_script.left():
            pass
    assert tf.distribute.get_strategy() is in_a_script.strategy
    with tf.device("/cpu:1"), in_a_script.left():
        pass
    assert (
        "tf.device('/job:localhost/replica:0/task:0/device:CPU:1') in the script is left out" in capsys.readouterr().out
    )


PARSER = "import argparse, sys\nparser = argparse.ArgumentParser()\n"
OWN_PARSER = """
import argparse, sys
class Parser(argparse.ArgumentParser):
    def error(self, problem):
        self.print_help()
        sys.exit(1)
parser = Parser()
"""


@pytest.mark.parametrize("parser", [PARSER, OWN_PARSER])
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "the following arguments are required: --rate"),
        (["--rate", "high"], "argument --rate: invalid float value: 'high'"),
        (["--rate", "1", "--speed"], "unrecognized arguments: --speed"),
    ],
)
def test_what_is_wrong_with_the_arguments_of_a_script_is_said(parser, arguments, problem, tmp_path, monkeypatch):
    script = tmp_path / "a.py"
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    script.write_text(parser + "parser.add_argument('--rate', type=float, required=True)\nparser.parse_args()")
    with pytest.raises(ConfigError) as caught:
        _run(script)
    assert str(caught.value) == f"the arguments of a.py: {problem}"
    assert caught.value.fix == "give them in trainer.args, or as -- ARG… on the command line"


def test_another_exit_of_a_script_is_its_failure(tmp_path):
    script = tmp_path / "a.py"
    script.write_text(PARSER + "parser.parse_args([])\nsys.exit(3)")
    with pytest.raises(ExitedError, match=r"a\.py ended with sys\.exit\(3\), at a\.py:"):
        _run(script)


@pytest.mark.usefixtures("in_a_script")
def test_devices_and_threads_are_as_the_job_says(capsys):
    """The first lines of many a guide, which TensorFlow refuses once it computes."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.threading.set_intra_op_parallelism_threads(tf.config.threading.get_intra_op_parallelism_threads() + 1)
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 9)
    tf.config.set_visible_devices([], "CPU")
    said = capsys.readouterr().out
    for name in ("set_intra_op_parallelism_threads", "set_logical_device_configuration", "set_visible_devices"):
        assert f"{name}() in the script is left out: the devices are set up as the job says" in said
