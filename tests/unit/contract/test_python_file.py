"""What a Python file is, by its source: known before it is sent, and before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tfgpujob_contract.python_file import FileError, Kind, is_script, kind_of

MODULE = "def model(): ...\ndef data(split): ...\n"
TEXTS = {
    MODULE: Kind.MODULE,
    MODULE + "model().fit(*data('train'))": Kind.MODULE,
    MODULE + "with tf.GradientTape() as tape: ...": Kind.MODULE,
    "from mine import *": Kind.MODULE,
    "from mine import *\ndef data(split): ...\nmodel().fit(*data('train'))": Kind.MODULE,
    "from keras.layers import *\nmodel.fit(1)": Kind.SCRIPT,
    "from mine import model, data": Kind.MODULE,
    "try:\n    from mine import model\nexcept E:\n    def model(): ...\ndef data(split): ...\n": Kind.MODULE,
    "model = data = 3\nmodel.fit(1)": Kind.SCRIPT,
    "def model(): ...\nmodel().fit(1)": Kind.SCRIPT,
    "def main():\n    net.fit(x)\nmain()": Kind.SCRIPT,
    "if x:\n    def model(): ...\ndata = lambda split: 1\n": Kind.MODULE,
    "net.predict(1)": Kind.SCRIPT,
    "import keras_tuner as kt\nkt.Hyperband(build).search(1)": Kind.SCRIPT,
    "from keras_tuner.tuners import RandomSearch\nRandomSearch(build).search(1)": Kind.SCRIPT,
    "import keras_tuner\nwith tf.GradientTape(): ...\nkeras_tuner.Hyperband(f).search(x)": Kind.SCRIPT,
    "import re\nre.search(1)": None,
    "x = 1": None,
    "def model(:": None,
    "x = '\0'": None,
    "with tf.GradientTape() as tape: ...": Kind.LOOP,
    "import tensorflow as tf\nfrom tensorflow import GradientTape\nnet.evaluate(1)": Kind.LOOP,
    "class M(keras.Model):\n    def train_step(self, d):\n        with tf.GradientTape(): ...\nM().fit(x)": Kind.SCRIPT,
    "strategy = tf.distribute.MirroredStrategy()\nstrategy.run(step)": Kind.LOOP,
    "subprocess.run('ls')\nnet.predict(1)": Kind.SCRIPT,
    "tf.distribute.experimental.ParameterServerStrategy(resolver)\nnet.fit(1)": Kind.SERVED_SCRIPT,
    "s = tf.distribute.ParameterServerStrategy if ps else tf.distribute.MirroredStrategy\nnet.fit(1)": Kind.SCRIPT,
    "import tfgpujob_trainer as tfgpu": Kind.LOOP,
    "tf.distribute.coordinator.ClusterCoordinator(strategy)": Kind.COORDINATOR,
    "from loops import train\ntrain()": Kind.LOOP,
    "with keras.distribution.DataParallel().scope(): net.train_on_batch(x)": Kind.SCRIPT,
    "import keras.distribution\nwith tf.GradientTape() as tape: ...": Kind.LOOP,
}


def test_the_kind_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text("def train(): strategy.experimental_run_v2(step)")
    check(TEXTS, tmp_path)


def check(expected: Mapping[str, Kind | None], folder: Path) -> None:
    """Hold the file with each text against what is expected of it: None if it is of no kind."""
    file, found = folder / "a.py", dict[str, Kind | None]()
    for text, kind in expected.items():
        file.write_text(text)
        if kind is None:
            with pytest.raises(FileError, match=r"^a\.py "):
                kind_of(file)
        found[text] = kind and kind_of(file)
        assert kind is None or is_script(file) is (kind is not Kind.MODULE)
    assert found == dict(expected)


HELPERS = {
    "lib/training.py": "from .steps import train\ndef run(): train()",
    "lib/steps.py": "def train():\n    net.fit(1)",
    "alone.py": "from . import wrong\ndef prepare(rows): return scaler.fit_transform(rows)",
    "wrong.py": "def f(:",
    "package/__init__.py": "import package.steps",
    "package/steps.py": "from . import wrong\nnet.predict(1)",
}
IMPORTING = {
    "from lib.training import run\nrun()": Kind.SCRIPT,
    "def main():\n    from lib import training\n    training.run()": Kind.SCRIPT,
    "import lib.training": Kind.SCRIPT,
    "import package": Kind.SCRIPT,
    "from package import steps": Kind.SCRIPT,
    "import alone, keras, lib": None,
    "from .lib import training": Kind.SCRIPT,
    "from .... import training": None,
    "from lib.training import run\ndef model(): ...": Kind.SCRIPT,
    "from lib import data, training": Kind.SCRIPT,
    "import alone\ndef model(): ...": None,
    "from lib.training import *": Kind.MODULE,
}


def test_a_script_may_leave_the_call_to_a_module_beside_it(tmp_path: Path) -> None:
    for name, helper in HELPERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(helper)
    check(IMPORTING, tmp_path)
