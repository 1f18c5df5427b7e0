"""The graphs of an evaluation: one for each kind of batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfgpujob_trainer.step.compiled import Evaluation


def test_batches_to_evaluate_on_need_no_graph_for_each_length():
    made: list[Any] = []

    def compiled(specs: Any) -> Any:
        made.append(specs)
        return lambda *_: None

    arrays = (np.zeros((2, 12)), np.zeros(2))
    evaluation = Evaluation(compiled, arrays)
    for weights in ((), (tf.zeros(4, tf.float64),)):
        for length in (12, 5, 7, 9, 3):
            evaluation(((tf.zeros((4, length), tf.float64), tf.zeros(4, tf.float64), *weights),), None)
    assert [spec[0].shape.as_list() for spec in made] == [[None, 12], [None, None], [None, 12], [None, None]]
    evaluation(((tf.zeros((4, 9), tf.float64), tf.zeros((4, 1), tf.float64)),), None)
    assert made[-1][1].shape.as_list() == [None, 1]
