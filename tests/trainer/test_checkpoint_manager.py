"""A run that was stopped and continues reports the same as an undisturbed one."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from itertools import count
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from tests.machine import PATIENCE
from tests.trainer import inprocess
from tests.trainer.cases import CE, labels, rows
from tests.trainer.inprocess import train_here, weights_of

from tfgpujob_trainer.checkpoints.directory import Owner
from tfgpujob_trainer.checkpoints.manager import CheckpointManager
from tfgpujob_trainer.checkpoints.store import Store
from tfgpujob_trainer.cluster.stop import StopFlag
from tfgpujob_trainer.contract.exits import StoppedError
from tfgpujob_trainer.train import run as run_module
from tfgpujob_trainer.train.session import Session

BATCH = 20
"""101 rows: for one replica the last row is a batch of its own, two replicas have it in the batch before."""


def make_model(metrics):
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    net.compile(keras.optimizers.SGD(0.1), CE(from_logits=True), metrics=list(metrics))
    return net


def trained(output, metrics=("accuracy",), **more):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    fields = {"devices": 1, "batch": BATCH, "seed": 1, **more}
    return train_here(lambda: make_model(metrics), (rows(6), labels()), output=output, **fields)


@pytest.mark.parametrize(
    ("remainder", "before", "step", "after", "steps", "examples", "ended"),
    [
        ("carry", 1, 14, 2, 22, 404, [2, 3]),
        ("carry", 1, 18, 2, 23, 404, [3]),
        ("carry", 2, 7, 1, 23, 404, [1, 2, 3]),
        ("carry", 1, 17, 2, 22, 403, [3]),
        ("step", 1, 17, 2, 24, 404, [2, 3]),
    ],
    ids=["fewer steps", "between epochs", "more steps", "at a batch that is no more", "as many steps"],
)
def test_a_resized_run_trains_all_epochs_and_no_more(tmp_path, remainder, before, step, after, steps, examples, ended):
    trained(tmp_path, devices=before, epochs=None, steps=step, remainder=remainder)
    seen: list[int] = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: seen.append(epoch))
    run = trained(tmp_path, devices=after, epochs=4, remainder=remainder, callbacks=lambda: [callback])
    saved = run.checkpoints._store.latest()
    assert saved is not None
    assert saved.state["position"] == {"epoch": 4, "index": 0, "step": steps, "examples": examples}
    assert (seen, run.log.steps) == (ended, steps)


class Listener(keras.callbacks.Callback):
    """Records its calls; stops the run in epoch `stop_in`."""

    def __init__(self, stop, stop_in=None):
        super().__init__()
        self.heard, self._stop, self._stop_in = [], stop, stop_in

    def on_train_begin(self, logs=None):
        self.heard.append("train")

    def on_epoch_begin(self, epoch, logs=None):
        self.heard.append(("begin", epoch))
        self._stop.set = epoch == self._stop_in

    def on_epoch_end(self, epoch, logs=None):
        self.heard.append(("end", epoch, logs))

    def on_test_end(self, logs=None):
        self.heard.append(("test", logs))


def test_callbacks_hear_of_an_evaluation_that_a_stop_left_out_once_training_begins_again(tmp_path, monkeypatch):
    stop = StopFlag()
    monkeypatch.setattr(inprocess, "Session", partial(Session, stop=stop))

    def train(output, stop_in=None):
        listener = Listener(stop, stop_in)
        with suppress(StoppedError):
            validation = (rows(6, seed=8), labels())
            fields = {"epochs": 3, "batch": 101, "validation": validation, "evaluate": {"everyEpochs": 2}}
            trained(output, **fields, callbacks=lambda: [listener])
        return listener.heard

    whole = train(tmp_path / "whole")
    first, second = train(tmp_path / "halves", stop_in=1), train(tmp_path / "halves")
    assert first == whole[:4]
    assert second == ["train", *whole[4:]]
    assert [event[0] for event in second] == ["t", "test", "end", "begin", "end"]
    assert {"val_loss", "val_accuracy"} < set(second[2][2])


def test_a_run_resumes_in_a_process_that_made_other_models_before_with_the_same_bits(tmp_path):
    """Keras numbers layers and optimizers by how many it has made; a sum of rounded numbers depends on its order."""
    metrics = ["sparse_categorical_crossentropy"]
    undisturbed = trained(tmp_path / "whole", metrics, devices=2, epochs=2)
    saved = trained(tmp_path / "halves", metrics, devices=2, epochs=None, steps=8)

    def another():
        make_model(metrics)
        keras.optimizers.SGD()
        return make_model(metrics)

    more = {"devices": 2, "batch": BATCH, "seed": 1, "output": tmp_path / "halves", "epochs": 2}
    resumed = train_here(another, (rows(6), labels()), **more)
    assert resumed.built.model.optimizer.name != saved.built.model.optimizer.name
    assert resumed.last_epoch == undisturbed.last_epoch
    for found, wanted in zip(weights_of(resumed), weights_of(undisturbed), strict=True):
        assert np.array_equal(found, wanted)


def test_a_run_with_other_metrics_goes_on(tmp_path, capsys):
    trained(tmp_path, epochs=None, steps=3)
    run = trained(tmp_path, metrics=("accuracy", "sparse_top_k_categorical_accuracy"), epochs=1)
    assert "the metrics changed since the checkpoint" in capsys.readouterr().out
    # The last three batches are all in which the new metric was counted.
    assert run.last_epoch["sparse_top_k_categorical_accuracy"] == 1


def test_what_was_best_by_another_metric_is_not_compared(tmp_path, capsys):
    fields = {"validation": (rows(6, seed=8), labels()), "evaluate": {"everyEpochs": 1}, "batch": 101}
    trained(tmp_path, epochs=1, **fields, best={"monitor": "accuracy", "mode": "max"})
    run = trained(tmp_path, epochs=2, **fields, best={"monitor": "loss", "patience": 1})
    assert "judges by loss now, not by accuracy" in capsys.readouterr().out
    assert (run.best.found.step, run.best.found.waited) == (2, 0)


@pytest.mark.parametrize("far", [2**31 - 2, 2**33 + 5])
def test_a_run_goes_on_beyond_31_bits_of_steps(tmp_path, far):
    """Three weeks of a small model: its counters, the data's order, the optimizer's and TensorBoard's."""
    trained(tmp_path, epochs=None, steps=3)
    store = Store(tmp_path, Owner(job_uid="", attempt=1, replica_restart=0), keep=3)
    store.take_ownership()
    saved = store.latest()
    assert saved is not None
    per_epoch = 6
    place = {"epoch": far // per_epoch, "index": far % per_epoch, "step": far, "examples": far * BATCH}
    arrays = {k: np.asarray(far, v.dtype) if k.endswith("iteration") else v for k, v in saved.arrays().items()}
    store.save(far, arrays, {**saved.state, "position": place}, "{}")
    run = trained(tmp_path, epochs=None, steps=far + 9)
    assert int(run.built.model.optimizer.iterations.numpy()) == far + 9
    after = run.checkpoints._store.latest()
    assert after is not None
    assert after.path.name == f"step-{far + 9:010d}"
    assert after.state["position"]["step"] == far + 9


@pytest.fixture
def saves(monkeypatch):
    """The steps after which is saved, where each look at the clock finds it a second later."""
    steps: list[int] = []
    right, seconds = CheckpointManager.save, count(1.0)

    def save(self, peers, step, *state):
        steps.append(step)
        right(self, peers, step, *state)

    monkeypatch.setattr(CheckpointManager, "save", save)
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    return steps


def test_it_saves_when_the_time_is_over_and_not_with_each_epoch(tmp_path, saves, monkeypatch):
    # A disk that is quick enough, on any machine: what a save finds that is still being written is the next test's.
    monkeypatch.setattr(CheckpointManager, "writing", property(CheckpointManager.wait))
    trained(tmp_path, epochs=2, checkpoint={"everySeconds": 4})
    assert saves == [4, 8, 12], "an epoch has six steps, and a save is a look at the clock as well"


def test_it_does_not_save_while_the_save_before_is_being_written(tmp_path, saves, monkeypatch):
    written, right = threading.Event(), Store.save

    def save(self, *state):
        assert written.wait(PATIENCE)
        return right(self, *state)

    monkeypatch.setattr(Store, "save", save)
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: written.set())
    trained(tmp_path, epochs=2, checkpoint={"everySeconds": 1}, callbacks=lambda: [callback])
    assert (saves[0], saves[-1]) == (1, 12)
    assert not {*range(2, 7)} & {*saves}
