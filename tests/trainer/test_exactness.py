"""The step, in float64 and in this process: Mirrored and OneDevice equal plain Keras to 1e-10."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.losses import loss as keras_loss
from tests.trainer.cases import (
    ACCUMULATED,
    CASES,
    CE,
    JUDGED_OTHERWISE,
    MICRO_BATCHES,
    PER_MICRO_BATCH,
    PLAIN,
    ROWS,
    SETTINGS,
    Embeddings,
    adamw,
    dense,
    embedding,
    labels,
    rng,
    rows,
    two_outputs,
)
from tests.trainer.inprocess import train_here, weights_of
from tests.trainer.reference import check_weights, held_against_plain_keras, train_in_micro_batches, train_plainly

from tfgpujob_contract.strategies import Strategy
from tfgpujob_trainer.checkpoints.store import variables_to_save
from tfgpujob_trainer.contract.exits import ConfigError, NotFiniteError
from tfgpujob_trainer.contract.support import SUPPORT
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.model.build import build
from tfgpujob_trainer.train.finish import finish
from tfgpujob_trainer.train.run import Position

MICRO: dict[str, Any] = {"accumulate": MICRO_BATCHES}


def test_every_technique_that_is_called_exact_is_proved():
    def everywhere(kind):
        return {
            technique
            for technique, row in SUPPORT.items()
            if {support.kind for strategy, support in row.items() if strategy != Strategy.PARAMETER_SERVER} == {kind}
        }

    assert everywhere("exact") == set(CASES) | JUDGED_OTHERWISE
    assert everywhere("per micro-batch") == set(PER_MICRO_BATCH)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("case", "devices"),
    [
        *(pytest.param(case, 2, marks=[pytest.mark.deep] if "jit" in case else []) for case in CASES),
        ("global_clipnorm", 1),
    ],
)
def test_mirrored_equals_plain_keras(case, devices):
    make_model, make_data = CASES[case]
    data = make_data()
    run = held_against_plain_keras(
        make_model, data, devices=devices, plain=PLAIN.get(case, {}), **SETTINGS.get(case, {})
    )
    assert not any("couples the rows" in note for note in run.built.steps.notes)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("length", "more", "make_optimizer"),
    [
        (None, {"devices": 2, **MICRO}, lambda: keras.optimizers.Adam(0.05, epsilon=1e-3)),
        pytest.param(5, {"devices": 2, "jit": "replica"}, adamw, marks=pytest.mark.deep),
        (5, {"devices": 2}, lambda: keras.optimizers.SGD(0.3, momentum=0.9)),
        (5, {"devices": 1, **MICRO}, adamw),
    ],
    ids=["rows of any length", "jit", "momentum", "micro-batches of one device"],
)
def test_each_lookup_of_an_embedding_counts_as_on_one_device(length, more, make_optimizer):
    data = (rng(6).integers(0, 7, size=(ROWS, 5)), labels())
    held_against_plain_keras(lambda: embedding(make_optimizer(), length), data, epochs=1, **more)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("make_model", "x", "more"),
    [
        (lambda: dense(adamw(), CE(from_logits=True, reduction="sum")), lambda: rows(6), MICRO),
        (lambda: embedding(length=None), lambda: rng(6).integers(0, 7, size=(ROWS, 5)), {}),
    ],
    ids=["a summed loss in micro-batches", "lookups"],
)
def test_a_row_that_is_left_over_is_a_step(make_model, x, more):
    """On two replicas, of which one has no row then."""
    data = x(), labels()
    run = held_against_plain_keras(make_model, data, batch=20, **more)
    assert run.built.schedule.steps_per_epoch == 6


@pytest.mark.usefixtures("float64")
def test_a_table_of_two_losses_with_their_own_divisors_counts_once():
    def make_model():
        inputs = keras.Input((5,), dtype="int64")
        hidden = keras.layers.GlobalAveragePooling1D()(Embeddings()(inputs))
        net = keras.Model(inputs, {name: keras.layers.Dense(3, name=name)(hidden) for name in "ab"})
        weighted = CE(from_logits=True, reduction="mean_with_sample_weight")
        net.compile(adamw(epsilon=1e-3), {"a": CE(from_logits=True), "b": weighted})
        return net

    weights = {name: rng(5).uniform(size=ROWS) for name in "ab"}
    data = (rng(6).integers(0, 7, size=(ROWS, 5)), {"a": labels(), "b": labels()}, weights)
    held_against_plain_keras(make_model, data, epochs=1)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.deep) if case.startswith("jit") else case for case in ACCUMULATED]
)
def test_accumulated_micro_batches_equal_the_batch_in_one_piece(case):
    make_model, make_data = CASES[case]
    data = make_data()
    held_against_plain_keras(make_model, data, plain=PLAIN.get(case, {}), **MICRO, **SETTINGS.get(case, {}))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("case", PER_MICRO_BATCH.values())
def test_statistics_of_micro_batches_equal_those_of_one_device_with_the_same_micro_batches(case, devices):
    make_model, make_data = CASES[case]
    data = make_data()
    plan = Schedule(rows=ROWS, global_batch_size=16, replicas=devices, seed=1, accumulate=MICRO_BATCHES)
    keras.utils.set_random_seed(1)
    expected = train_in_micro_batches(make_model(), data, plan, epochs=2)
    keras.utils.set_random_seed(1)
    run = train_here(make_model, data, devices=devices, epochs=2, batch=16, seed=1, **MICRO)
    check_weights(run, expected)
    assert any("batch statistics are each micro-batch's own" in note for note in run.built.steps.notes)


def test_accumulation_is_taken_over_from_the_optimizer_and_must_not_contradict(capsys):
    def make_model():
        return dense(adamw(gradient_accumulation_steps=4))

    data = (rows(6), labels())
    run = train_here(make_model, data, devices=2, epochs=1, batch=16, seed=1)
    assert run.built.schedule.accumulate == 4
    assert "global batch 16 = 2 × 2 replicas × 4 micro-batches" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"gradient_accumulation_steps=4, trainer.accumulate is 2"):
        train_here(make_model, data, devices=1, epochs=1, batch=16, seed=1, accumulate=2)
    with pytest.raises(ConfigError, match="for 2 replicas × 9 micro-batches"):
        train_here(lambda: dense(adamw()), data, devices=2, epochs=1, batch=16, seed=1, accumulate=9)


def test_an_overflow_on_one_replica_skips_the_step_on_all(tmp_path):
    x, y = rows(6).astype("float32"), labels()
    order_of_first_batch = [3]
    x[order_of_first_batch] = 1e5  # overflows float16, on whichever replica has that row
    run = train_here(
        lambda: dense(adamw(global_clipnorm=1.0)),
        (x, y),
        devices=2,
        epochs=2,
        batch=ROWS,
        seed=1,
        precision="mixed_float16",
    )
    assert run.skipped_in_all == 2
    assert run.built.takeover.loss_scale is not None
    scales = run.built.model.optimizer.dynamic_scale.value.values
    assert [float(s.numpy()) for s in scales] == [2.0**13] * 2
    assert all(np.isfinite(w).all() for w in weights_of(run))
    assert int(run.built.takeover.optimizer.iterations.value.values[0]) == 0


@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_learns_and_stays_the_same_on_every_replica(precision):
    data = (rows(6).astype("float32"), rows(6).argmax(1) % 3)
    run = train_here(
        lambda: dense(adamw(global_clipnorm=1.0), metrics=["accuracy"]),
        data,
        devices=2,
        epochs=30,
        batch=16,
        seed=1,
        precision=precision,
    )
    first, second = ([v.value.values[i].numpy() for v in run.built.model.weights] for i in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert run.last_epoch["accuracy"] > 0.9
    assert run.skipped_in_all < 10


def test_a_precision_that_the_module_contradicts_is_refused():
    def make_model():
        keras.config.set_dtype_policy("mixed_bfloat16")
        return dense(adamw())

    with pytest.raises(ConfigError, match=r"computes in mixed_bfloat16, trainer.precision is float32"):
        train_here(make_model, (rows(6), labels()), devices=1, epochs=1, batch=16, seed=1, precision="float32")


@pytest.mark.usefixtures("float64")
def test_evaluation_and_metrics_equal_plain_keras():
    def make_model():
        return dense(adamw(), metrics=["accuracy"])

    data = (rows(6), labels())
    run = train_here(make_model, data, devices=2, epochs=2, batch=16, seed=1)
    found = run.evaluate(run.built.data)
    plain = dense(adamw(), metrics=["accuracy"])
    plain.set_weights(weights_of(run))
    loss, accuracy = plain.evaluate(*data, batch_size=ROWS, verbose=0)
    assert found["loss"] == pytest.approx(loss, abs=1e-12)
    assert found["accuracy"] == pytest.approx(accuracy, abs=1e-12)


@pytest.mark.usefixtures("float64")
def test_the_loss_of_each_of_several_outputs_equals_plain_keras():
    x, y, weights = rows(6), {"a": labels(), "b": rows(2, seed=5)}, {"a": rng().random(ROWS), "b": rng(1).random(ROWS)}
    run = train_here(two_outputs, (x, y, weights), devices=2, epochs=1, batch=16, seed=1)
    plain = two_outputs()
    plain.set_weights(weights_of(run))
    expected = plain.evaluate(x, y, batch_size=16, sample_weight=weights, verbose=0, return_dict=True)
    assert set(expected) == {"loss", "a_loss", "b_loss"}
    assert run.evaluate(run.built.data) == pytest.approx(expected, abs=1e-12)


@pytest.mark.usefixtures("float64")
def test_every_variable_of_the_model_and_its_optimizer_is_saved():
    def make_model():
        net = keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
        net.add(keras.layers.Dense(3))
        net.compile(adamw(), CE(from_logits=True), metrics=["accuracy"])
        return net

    run = train_here(make_model, (rows(6), labels()), devices=1, epochs=1, batch=16, seed=1)
    model = run.built.model
    saved = {id(v) for v in variables_to_save(model).values()}
    metrics = {id(v) for v in model.metrics_variables}
    assert saved == {id(v) for v in [*model.variables, *model.optimizer.variables]} - metrics
    assert any("seed_generator" in name for name in variables_to_save(model))


def test_batch_statistics_do_not_drift_apart_between_replicas():
    def make_model():
        net = keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(3)])
        net.compile(adamw(), CE(from_logits=True))
        return net

    run = train_here(make_model, (rows(6), labels()), devices=2, epochs=2, batch=20, seed=1)
    moving_mean = run.built.model.layers[0].moving_mean.value
    first, second = (v.numpy() for v in moving_mean.values)
    assert (first == second).all()
    assert any("synchronized=True" in note for note in run.built.steps.notes)


@pytest.mark.usefixtures("float64")
def test_rows_left_over_are_carried_where_replicas_share_the_statistics_of_a_batch():
    """One without rows computes another's, which would count twice there."""
    data = rows(6)[:9], labels()[:9]
    run = train_here(CASES["synchronized BatchNormalization"][0], data, devices=2, epochs=1, batch=4, seed=1)
    assert run.built.schedule.steps_per_epoch == 2
    (note,) = run.built.schedule.notes
    assert note.startswith("the last 1 row is too few for 2 replicas: added to the batch before in each epoch")


def test_averaged_weights_are_the_model_in_the_end(tmp_path):
    run = train_here(
        lambda: dense(adamw(use_ema=True)), (rows(6), labels()), devices=2, epochs=1, batch=16, seed=1, output=tmp_path
    )
    averages = [a.value.values[0].numpy() for a in run.built.takeover.optimizer._model_variables_moving_average]
    finish(run, Position(epoch=1, step=7))
    exported = keras.saving.load_model(tmp_path / "model.keras").get_weights()
    assert all((a == b).all() for a, b in zip(averages, exported, strict=True))


def test_a_loss_that_is_no_number_names_the_step_and_the_worker():
    x = rows(6)
    x[:] = np.nan
    with pytest.raises(NotFiniteError, match="the loss of step 1 is NaN or infinite on worker 0"):
        train_here(lambda: dense(adamw()), (x, labels()), devices=2, epochs=1, batch=16, seed=1)


def test_the_private_names_of_keras_that_the_step_stands_on_exist():
    assert callable(keras.optimizers.SGD._all_reduce_sum_gradients)
    assert callable(keras.optimizers.SGD._clip_gradients)
    for name in ("reduce_weighted_values", "apply_mask", "scale_loss_for_distribution"):
        assert callable(getattr(keras_loss, name))
    assert callable(keras.Model._symbolic_build)
    assert callable(keras.Model._flatten_layers)
    net = dense(adamw())
    assert hasattr(net, "_compile_loss")
    assert keras.version() == "3.15.1"
    assert tf.__version__ == "2.21.0"


class Reconstruction(keras.layers.Layer):
    """Adds the loss of an autoencoder, which is compiled without any."""

    def call(self, x, y):
        self.add_loss(keras.ops.mean(keras.ops.square(x - y)))
        return y


def autoencoder():
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(3, "tanh", kernel_regularizer="l2", activity_regularizer="l2")(inputs)
    net = keras.Model(inputs, Reconstruction()(inputs, keras.layers.Dense(6)(hidden)))
    net.compile(adamw())
    return net


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("devices", [1, 2])
def test_layers_may_add_the_whole_loss(devices):
    held_against_plain_keras(autoencoder, (rows(6),), devices=devices)


class Largest(keras.metrics.Metric):
    """A metric whose state is not a sum."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_variable((), "ones", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.cast(keras.ops.max(y_pred), "float32")))

    def result(self):
        return self.largest

    def reset_state(self):
        self.largest.assign(1)


def frozen(model):
    model.trainable = False
    return model


def test_a_model_whose_input_is_that_of_its_first_rows_takes_other_batches_later():
    net = keras.Sequential([keras.layers.Dense(3)])
    net.compile(adamw(), CE(from_logits=True))
    for count in (2, 5):
        build(net, (rows(6)[:count], labels()[:count]), "MultiWorkerMirrored")
    assert net.inputs[0].shape[0] == 2


def without_a_loss():
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, kernel_regularizer="l2")])
    net.compile(adamw())
    return net


@pytest.mark.parametrize(
    ("make_model", "message", "fix"),
    [
        (lambda: 3, "model() returned a int", "return a compiled keras.Model"),
        (lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)]), "is not compiled", "call model.compile"),
        (lambda: dense(adamw(), run_eagerly=True), "run_eagerly", "remove it from compile()"),
        (lambda: dense(adamw(), CE(from_logits=True, reduction="none")), "has reduction='none'", "use reduction="),
        (lambda: frozen(dense(adamw())), "nothing to train", "set layer.trainable = True"),
        (without_a_loss, "compiled without a loss", "give model.compile() a loss, or a layer"),
        (lambda: dense(adamw(), metrics=[Largest()]), "is not a sum that starts at zero", "use a metric whose state"),
    ],
)
def test_what_is_not_done_right_is_refused(make_model, message, fix):
    with pytest.raises(ConfigError) as caught:
        train_here(make_model, (rows(6), labels()), devices=1, epochs=1, batch=16, seed=1)
    assert message in str(caught.value)
    assert caught.value.fix.startswith(fix)


def stateful():
    net = keras.Sequential([keras.Input(batch_shape=(16, 6, 1)), keras.layers.GRU(3, stateful=True, name="gru")])
    net.compile(adamw(), CE(from_logits=True))
    return net


@pytest.mark.usefixtures("float64")
def test_an_rnn_may_be_stateful_where_one_replica_has_the_whole_batch():
    x, y = rng(6).normal(size=(4 * 16, 6, 1)), rng(7).integers(0, 3, 4 * 16)
    keras.utils.set_random_seed(1)
    expected = train_plainly(stateful(), x, y, epochs=2, batch=16, seed=1)
    keras.utils.set_random_seed(1)
    run = train_here(stateful, (x, y), devices=1, epochs=2, batch=16, seed=1)
    check_weights(run, expected)
    with pytest.raises(ConfigError, match="gru has stateful=True"):
        train_here(stateful, (x, y), devices=2, epochs=1, batch=16, seed=1)
