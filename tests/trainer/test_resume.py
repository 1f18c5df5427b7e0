"""What a run that was stopped and goes on shows of itself is what an undisturbed one shows."""

from __future__ import annotations

import keras
import pytest
from tests.trainer.cases import CE, labels, rows
from tests.trainer.inprocess import train_here

BATCH = 20
"""101 rows: for one replica the last row is a batch of its own, two replicas have it in the batch before."""


def make_model():
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    net.compile(keras.optimizers.SGD(0.1), CE(from_logits=True), metrics=["accuracy"])
    return net


def trained(output, **more):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    fields = {"devices": 1, "batch": BATCH, "seed": 1, **more}
    return train_here(make_model, (rows(6), labels()), output=output, **fields)


@pytest.mark.parametrize(
    ("before", "step", "after", "steps", "examples", "ended"),
    [
        (1, 14, 2, 22, 404, [2, 3]),
        (1, 18, 2, 23, 404, [3]),
        (2, 7, 1, 23, 404, [1, 2, 3]),
        (1, 17, 2, 22, 403, [3]),
    ],
    ids=["fewer steps", "between epochs", "more steps", "at a batch that is no more"],
)
def test_a_resized_run_trains_all_epochs_and_no_more(tmp_path, before, step, after, steps, examples, ended):
    trained(tmp_path, devices=before, epochs=None, steps=step)
    seen: list[int] = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: seen.append(epoch))
    run = trained(tmp_path, devices=after, epochs=4, callbacks=lambda: [callback])
    saved = run.resume._store.latest()
    assert saved is not None
    assert saved.state["position"] == {"epoch": 4, "index": 0, "step": steps, "examples": examples}
    assert (seen, run.progress.steps) == (ended, steps)
