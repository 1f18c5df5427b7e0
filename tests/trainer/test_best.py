"""Evaluation while training: what is best is kept, restored and survives a restart; callbacks look on."""

from __future__ import annotations

import re

import keras
import pytest
from tests.trainer.cases import CE, labels, rows
from tests.trainer.inprocess import train_here

from tfgpujob_trainer.checkpoints.store import newest
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.script.callbacks import chosen
from tfgpujob_trainer.train.best import BestEvaluation, updated
from tfgpujob_trainer.train.finish import finish
from tfgpujob_trainer.train.run import Position

DATA, VALIDATION = (rows(6), labels()), (rows(6, seed=8), labels()[::-1])
"""Labels that nothing follows from: the more is learnt, the worse is the validation."""
EPOCH = 7
"""Steps."""


def make_model():
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
    net.compile(keras.optimizers.Adam(0.1), CE(from_logits=True), metrics=["accuracy"])
    return net


def trained(output=None, **more):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    fields = {"epochs": 9, "devices": 1, "evaluate": {"everySteps": 3}, **more}
    return train_here(make_model, DATA, validation=VALIDATION, batch=16, seed=1, output=output, **fields)


def evaluations(printed):
    """The loss of each, by the step: in a line of its own, or in that of the epoch that ends there."""
    own = {
        int(step): float(loss) for step, loss in re.findall(r"validation after step (\d+):.*? loss ([\d.]+)", printed)
    }
    ends = re.findall(r"epoch (\d+)/\d+: .*?val_loss ([\d.]+)", printed)
    return dict(sorted({**own, **{int(epoch) * EPOCH: float(loss) for epoch, loss in ends}}.items()))


@pytest.mark.parametrize(
    ("found", "value", "minimise", "min_delta", "expected"),
    [
        (BestEvaluation(), 2.0, True, 0.0, BestEvaluation(value=2.0, step=9)),
        (BestEvaluation(value=2.0, step=3, waited=1), 1.9, True, 0.0, BestEvaluation(value=1.9, step=9)),
        (BestEvaluation(value=2.0, step=3, waited=1), 1.9, True, 0.2, BestEvaluation(value=2.0, step=3, waited=2)),
        (BestEvaluation(value=2.0, step=3), 2.0, True, 0.0, BestEvaluation(value=2.0, step=3, waited=1)),
        (BestEvaluation(value=2.0, step=3), 2.1, False, 0.0, BestEvaluation(value=2.1, step=9)),
        (BestEvaluation(value=2.0, step=3), 1.9, False, 0.0, BestEvaluation(value=2.0, step=3, waited=1)),
        (BestEvaluation(), float("nan"), True, 0.0, BestEvaluation(waited=1)),
        (BestEvaluation(value=2.0, step=3), float("inf"), False, 0.0, BestEvaluation(value=2.0, step=3, waited=1)),
    ],
)
def test_judgement(found, value, minimise, min_delta, expected):
    assert updated(found, value, 9, minimise=minimise, min_delta=min_delta) == expected


def test_training_stops_early_and_ends_with_the_best_weights(tmp_path, capsys):
    run = trained(tmp_path, best={"monitor": "loss", "patience": 3})
    said = capsys.readouterr().out
    assert "back to the weights of step" in said
    seen = evaluations(said)
    best = min(seen, key=lambda step: seen[step])
    assert list(seen) == list(range(3, best + 10, 3))
    assert best + 9 < 63
    summary = finish(run, Position(step=best + 9))
    assert (summary["best"]["step"], summary["stoppedEarly"]) == (best, True)
    assert run.evaluate(run.built.validation)["loss"] == pytest.approx(summary["best"]["value"], abs=1e-6)
    kept = newest(tmp_path / "best")
    assert kept is not None
    assert kept.path.name == f"step-{best:010d}"
    assert len(list((tmp_path / "best" / "checkpoints").glob("step-*"))) == 1
    capsys.readouterr()

    trained(tmp_path, best={"monitor": "loss", "patience": 3})
    assert evaluations(capsys.readouterr().out) == {}, "a run that had stopped early stays stopped"


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_what_is_best_survives_a_restart(tmp_path, capsys, devices):
    best = {"monitor": "accuracy", "mode": "max", "patience": 4, "restore": False}
    whole = trained(tmp_path / "whole", devices=devices, best=best)
    undisturbed = evaluations(capsys.readouterr().out)
    first = trained(tmp_path / "halves", devices=devices, best=best, epochs=None, steps=8)
    assert first.best.found.waited > 0
    second = trained(tmp_path / "halves", devices=devices, best=best)
    assert evaluations(capsys.readouterr().out) == pytest.approx(undisturbed, abs=1e-4)
    assert second.best.found == whole.best.found
    assert not second.best.restore()


def test_a_stop_at_an_evaluation_owes_it(tmp_path, capsys):
    run = trained(tmp_path, epochs=None, steps=5)
    capsys.readouterr()
    saved = newest(tmp_path)
    assert saved is not None
    run.checkpoints._store.save(5, saved.arrays(), {**saved.state, "owesEvaluation": True}, "{}")
    trained(tmp_path, epochs=None, steps=6)
    assert list(evaluations(capsys.readouterr().out)) == [5, 6]


def test_the_metrics_of_an_epoch_do_not_notice_an_evaluation_within_it():
    without, with_ = (trained(epochs=1, evaluate=evaluate).last_epoch for evaluate in ({}, {"everySteps": 2}))
    assert with_ == pytest.approx(without, abs=1e-6)


def test_best_needs_a_metric_and_a_validation_split(tmp_path):
    with pytest.raises(ConfigError, match="there is no 'acuracy'") as caught:
        trained(tmp_path, best={"monitor": "acuracy", "mode": "max"})
    assert caught.value.fix == "did you mean 'accuracy'?"
    with pytest.raises(ConfigError, match="there is no validation split"):
        train_here(
            make_model,
            DATA,
            devices=1,
            epochs=1,
            batch=16,
            seed=1,
            evaluate={"everyEpochs": 1},
            best={"monitor": "loss"},
        )


class Recorder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_begin(self, logs=None):
        self.seen.append(("begin", self.params["epochs"], self.model is not None))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((epoch, sorted(logs)))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(batch)


def test_callbacks_look_on():
    recorder = Recorder()
    trained(epochs=2, evaluate={"everyEpochs": 2}, callbacks=lambda: [recorder], logEverySeconds=600)
    mine = ["accuracy", "loss"]
    validation = ["val_accuracy", "val_loss"]
    assert recorder.seen == [("begin", 2, True), 7, (0, mine), 14, (1, mine + validation)]


class Tracker(keras.callbacks.Callback):
    """As those of trackers are written: with the alias that Keras calls."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_batch_end(self, batch, logs=None):
        self.seen.append((batch, sorted(logs)))


def test_the_alias_that_trackers_define_is_called():
    tracker = Tracker()
    trained(epochs=1, callbacks=lambda: [tracker], logEverySeconds=600)
    assert tracker.seen == [(7, ["accuracy", "loss"])]


def test_callbacks_are_made_on_the_chief_alone(monkeypatch):
    made = []

    def callbacks():
        made.append(Tracker())
        return made

    for is_chief in (True, False):
        monkeypatch.setattr(Environment, "is_chief", is_chief)
        trained(epochs=1, callbacks=callbacks)
    assert len(made) == 1


def test_a_trackers_callback_in_a_script_writes_on_the_first_worker(monkeypatch):
    monkeypatch.setattr(Tracker, "__module__", "wandb.integration.keras")
    tracker, own = Tracker(), keras.callbacks.LambdaCallback()
    assert chosen([tracker, own], is_chief=True) == [tracker, own]
    assert chosen([tracker, own], is_chief=False) == [own]


def test_a_csv_log_works(tmp_path):
    trained(epochs=2, callbacks=lambda: [keras.callbacks.CSVLogger(tmp_path / "log.csv")])
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0].startswith("epoch,accuracy,loss")
    assert len(lines) == 3


@pytest.mark.parametrize("append", [False, True])
def test_a_csv_log_keeps_its_rows_over_a_resume(tmp_path, append):
    log = tmp_path / "log.csv"
    for epochs in (2, 3):
        trained(tmp_path / "run", epochs=epochs, callbacks=lambda: [keras.callbacks.CSVLogger(log, append=append)])
        if epochs == 2:
            log.write_text(log.read_text() + "2,0,0,0,0\n")  # an epoch after the checkpoint
    header, *rows = log.read_text().splitlines()
    assert header.startswith("epoch,accuracy,loss")
    assert [row.partition(",")[0] for row in rows] == ["0", "1", "2"]
    assert rows[2] != "2,0,0,0,0"


class Stops(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


class Predicts(keras.callbacks.Callback):
    def on_predict_begin(self, logs=None): ...


@pytest.mark.parametrize(
    ("callbacks", "message", "fix"),
    [
        (lambda: [keras.callbacks.EarlyStopping()], "EarlyStopping cannot run", "set trainer.best with a patience"),
        (lambda: [keras.callbacks.ReduceLROnPlateau()], "ReduceLROnPlateau cannot run", "give the optimizer"),
        (lambda: [Predicts()], "Predicts.on_predict_begin is never called", "use one of on_train_begin"),
        (lambda: [Stops()], "Stops set model.stop_training", "set trainer.best with a patience"),
        (lambda: [print], "returned a builtin_function", "return a list of keras.callbacks.Callback"),
    ],
)
def test_callbacks_that_would_do_more_are_refused_by_name(callbacks, message, fix):
    with pytest.raises(ConfigError, match=message) as caught:
        trained(epochs=1, callbacks=callbacks)
    assert caught.value.fix.startswith(fix)


def test_an_exception_of_a_callback_is_the_users():
    def fail(epoch, logs):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError):
        trained(epochs=1, callbacks=lambda: [keras.callbacks.LambdaCallback(on_epoch_end=fail)])
