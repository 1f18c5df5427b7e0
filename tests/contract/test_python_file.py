"""What a Python file is: told by the command line before it is sent, and by the trainer before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.contract.sides import trainer

from tfgpujob.convert.python_file import Kind, is_script, kind_of

MODULE = "def model(): ...\ndef data(split): ...\n"
TEXTS = {
    MODULE: False,
    MODULE + "model().fit(*data('train'))": False,
    "from mine import *": False,
    "from mine import *\ndef data(split): ...\nmodel().fit(*data('train'))": False,
    "from keras.layers import *\nmodel.fit(1)": True,
    "from mine import model, data": False,
    "model = data = 3\nmodel.fit(1)": True,
    "if x:\n    def model(): ...\ndata = lambda split: 1\n": False,
    "net.predict(1)": True,
    "import keras_tuner as kt\nkt.Hyperband(build).search(1)": True,
    "from keras_tuner.tuners import RandomSearch\nRandomSearch(build).search(1)": True,
    "import re\nre.search(1)": None,
    "x = 1": None,
    "def model(:": None,
}


def test_both_sides_tell_a_script_from_a_module_alike(tmp_path: Path) -> None:
    both_sides_say(TEXTS, tmp_path)


def both_sides_say(expected: Mapping[str, bool | None], folder: Path) -> None:
    """Hold both against what is expected of a file with each text: None if it is neither."""
    file = folder / "a.py"
    wrong: dict[str, object] = {}
    for text, meant in expected.items():
        file.write_text(text)
        theirs = trainer("kind", {"file": str(file)})
        try:
            ours, why = is_script(file), ""
        except ValueError as error:
            ours, why = None, str(error)
        if not meant == ours == theirs.get("script") or ("a.py" in why) != (meant is None):
            wrong[text] = ours, why, theirs
        elif why.partition(":")[0] not in theirs.get("error", ""):
            wrong[text] = why, theirs
    assert wrong == {}


LOOPS = {
    "with tf.GradientTape() as tape: ...": Kind.LOOP,
    "import tensorflow as tf\nfrom tensorflow import GradientTape\nnet.evaluate(1)": Kind.LOOP,
    "with tf.GradientTape() as tape: ...\nnet.fit(1)": Kind.SCRIPT,
    "strategy = tf.distribute.MirroredStrategy()\nstrategy.run(step)": Kind.LOOP,
    "subprocess.run('ls')\nnet.predict(1)": Kind.SCRIPT,
    "tf.distribute.experimental.ParameterServerStrategy(resolver)\nnet.fit(1)": Kind.SERVED_SCRIPT,
    "s = tf.distribute.ParameterServerStrategy if ps else tf.distribute.MirroredStrategy\nnet.fit(1)": Kind.SCRIPT,
    "import tfgpujob_trainer as tfgpu": Kind.LOOP,
    "tf.distribute.coordinator.ClusterCoordinator(strategy)": Kind.COORDINATOR,
    "from loops import train\ntrain()": Kind.LOOP,
    MODULE + "with tf.GradientTape() as tape: ...": Kind.MODULE,
}


def test_both_sides_tell_a_loop_of_its_own_alike(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    (tmp_path / "loops.py").write_text("def train(): strategy.experimental_run_v2(step)")
    for text, meant in LOOPS.items():
        file.write_text(text)
        assert kind_of(file) is meant, text
        theirs = trainer("kind", {"file": str(file)})
        assert theirs["script"] is (meant is not Kind.MODULE), text
        if theirs["script"]:
            assert theirs["loop"] is (meant in {Kind.LOOP, Kind.COORDINATOR}), text


HELPERS = {
    "lib/training.py": "from .steps import train\ndef run(): train()",
    "lib/steps.py": "def train():\n    net.fit(1)",
    "alone.py": "from . import wrong\ndef prepare(rows): return scaler.fit_transform(rows)",
    "wrong.py": "def f(:",
    "package/__init__.py": "import package.steps",
    "package/steps.py": "from . import wrong\nnet.predict(1)",
}
IMPORTING = {
    "from lib.training import run\nrun()": True,
    "def main():\n    from lib import training\n    training.run()": True,
    "import lib.training": True,
    "import package": True,
    "from package import steps": True,
    "import alone, keras, lib": None,
    "from .lib import training": True,
    "from .... import training": None,
    "from lib.training import run\ndef model(): ...": True,
    "from lib import data, training": True,
    "import alone\ndef model(): ...": None,
    "from lib.training import *": False,
}


def test_a_script_may_leave_the_call_to_a_module_beside_it(tmp_path: Path) -> None:
    for name, helper in HELPERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(helper)
    both_sides_say(IMPORTING, tmp_path)
