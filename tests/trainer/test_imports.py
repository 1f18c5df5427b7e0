"""What a training process imports before its entrypoint: nothing that only some jobs use."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, sys
import tfgpujob_trainer.task
print(gc.isenabled(), gc.get_freeze_count() > 100_000)
print(*sorted({"sklearn", "scipy.stats", "tensorboard", "keras.wrappers"} & {*sys.modules}))
import keras
print(hasattr(keras.wrappers, "Nothing"), "sklearn" in sys.modules)
from keras.wrappers import SKLearnClassifier
print(SKLearnClassifier.__module__, SKLearnClassifier is keras.wrappers.SKLearnClassifier, "sklearn" in sys.modules)
"""


def test_scikit_learn_and_tensorboard_are_imported_when_they_are_used():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines() == [
        "True True",
        "keras.wrappers",
        "False False",
        "keras.src.wrappers.sklearn_wrapper True True",
    ], ended.stderr


def test_the_classes_are_those_of_keras():
    """A new version may have others."""
    code = (
        "import keras; print(*sorted(name for name in dir(keras.wrappers) if name[0].isupper())); "
        "from tfgpujob_trainer.contract import quick_imports; print(*quick_imports._CLASSES)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    of_keras, ours = ended.stdout.splitlines()
    assert of_keras == ours
