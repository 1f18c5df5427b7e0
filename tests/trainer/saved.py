"""The weights that a checkpoint holds."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def saved(folder):
    """The weights of the last checkpoint, and its step."""
    newest = max((folder / "checkpoints").glob("step-*/COMMIT")).parent
    reader = tf.train.load_checkpoint(str(newest / "variables"))
    weights = {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}
    return int(newest.name.removeprefix("step-")), weights


def difference(first, second):
    """The largest between the weights of two checkpoints of the same step."""
    (last, one), (also, two) = first, second
    assert last == also
    assert one.keys() == two.keys()
    assert len(one) > 4, "the optimizer's variables too"
    return max(np.abs(one[name] - two[name]).max() for name in one)
