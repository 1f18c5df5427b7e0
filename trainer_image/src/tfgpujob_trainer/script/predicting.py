"""predict() of a script's models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import backend  # Keras is pinned

from tfgpujob_contract import phases
from tfgpujob_trainer.data.sources import Indexed
from tfgpujob_trainer.script.call import BATCHED, DEFAULT_BATCH, source_of
from tfgpujob_trainer.script.callbacks import CallCallbacks, chosen
from tfgpujob_trainer.script.datasets import parts
from tfgpujob_trainer.train.session import Session


def predict(
    session: Session,
    model: keras.Model,
    x: Any,
    *,
    batch_size: int | None = None,
    verbose: Any = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """The outputs for all rows; every worker computes all of them, since the script on each wants them."""
    own = type(model).predict_step is not keras.Model.predict_step
    if model.predict_function is None:  # which compile() forgets, as the one that Keras keeps there
        step = model.predict_step if own else partial(model, training=False)
        model.predict_function = tf.function(step, autograph=False, reduce_retracing=True)
    hooks = CallCallbacks(chosen(callbacks, is_chief=session.env.is_chief), model, verbose)
    hooks("on_predict_begin")
    outputs = []
    for index, batch in enumerate(islice(_batches(x, batch_size or DEFAULT_BATCH, whole=own), steps)):
        if index == 0 and not all(layer.built for layer in model._flatten_layers()):  # noqa: SLF001
            _build(session.strategy, model.predict_step if own else partial(model, training=False), batch)
        hooks("on_predict_batch_begin", index)
        outputs.append(tf.nest.map_structure(np.asarray, model.predict_function(batch)))
        hooks("on_predict_batch_end", index, {"outputs": outputs[-1]})
        session.heartbeat.beat(phases.PREDICTING)
    hooks("on_predict_end")
    return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *outputs)


def _build(strategy: tf.distribute.Strategy, step: Callable[[Any], Any], batch: Any) -> None:
    """Make the variables of a model that has none yet where fit() needs them: in the job's strategy."""
    symbolic = tf.nest.map_structure(lambda array: keras.KerasTensor(array.shape, array.dtype.name), batch)
    with strategy.scope():
        backend.compute_output_spec(step, symbolic)


def _batches(x: Any, size: int, *, whole: bool) -> Iterator[Any]:
    """What predict() computes at a time: a dataset's own batches, or that many rows of arrays.

    Their inputs or, if `whole`, what Keras gives to a predict_step().
    """
    if isinstance(x, BATCHED):
        batches = (x[i] for i in range(x.num_batches)) if isinstance(x, keras.utils.PyDataset) else x
        yield from batches if whole else (parts(batch)[0] for batch in batches)
        return
    data = source_of(x, None, None, "predict()'s data", size)
    assert isinstance(data, Indexed)
    for start in range(0, data.rows, size):
        rows = data.tensors(np.arange(start, min(start + size, data.rows)))
        yield rows if whole and isinstance(x, tuple | list) else rows[0]
