"""Checkpoints: published whole or not at all, kept in number, fenced by attempt, fallen back from aloud."""

from __future__ import annotations

import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.machine import PATIENCE
from tests.small_disk import fill, small_disk
from tests.trainer.inprocess import strategy_over, train_here, weights_of

from tfgpujob_trainer.checkpoints.directory import COMMIT, Owner, half_of, last_copies, last_copy
from tfgpujob_trainer.checkpoints.manager import CheckpointManager
from tfgpujob_trainer.checkpoints.store import Store
from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.contract.exits import ConfigError, FencedError

ARRAYS = {"model/0000/kernel": np.arange(6.0).reshape(2, 3), "model/0001/seed": np.array([1, 2], np.uint32)}


def owner(attempt=1, restart=0, job="job"):
    return Owner(job_uid=job, attempt=attempt, replica_restart=restart)


@pytest.fixture
def said(monkeypatch):
    found: list[str] = []
    monkeypatch.setattr("tfgpujob_trainer.checkpoints.store.say", found.append)
    return found


@pytest.fixture
def store(tmp_path):
    result = Store(tmp_path, owner(), keep=2)
    result.take_ownership()
    return result


def save(store, *steps):
    return [store.save(step, ARRAYS, {"step": step}, "{}") for step in steps]


@pytest.mark.parametrize("most", [1 << 20, 1, 50])
def test_what_was_saved_is_read_back(store, monkeypatch, most):
    """Also if it was written in several parts."""
    monkeypatch.setattr("tfgpujob_trainer.checkpoints.store._PART_BYTES", most)
    save(store, 5)
    saved = store.latest()
    assert saved is not None
    assert saved.state == {"step": 5}
    found = saved.arrays()
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert (found[name] == array).all()


def test_only_the_newest_are_kept(store):
    save(store, 1, 2, 30)
    assert sorted(p.name for p in store.directory.glob("step-*")) == ["step-0000000002", "step-0000000030"]


def test_damaged_ones_that_are_newer_do_not_push_out_what_is_saved(store):
    damaged = save(store, 20, 30)
    for path in damaged:
        flip(path / "state.json")
    save(store, 5)
    saved = store.latest()
    assert saved is not None
    assert saved.state == {"step": 5}


def test_without_commit_a_checkpoint_does_not_exist(store, said):
    _, newest = save(store, 1, 2)
    (newest / COMMIT).unlink()
    saved = store.latest()
    assert saved is not None
    assert saved.state == {"step": 1}
    assert said == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda p: flip(p / "variables.data-00000-of-00001"), "does not match its checksum"),
        (lambda p: (p / "state.json").unlink(), "state.json is missing"),
        (lambda p: (p / COMMIT).write_text("{"), "COMMIT cannot be read"),
    ],
)
def test_a_corrupt_checkpoint_is_said_and_the_one_before_it_is_used(store, said, damage, problem):
    _, newest = save(store, 1, 2)
    damage(newest)
    saved = store.latest()
    assert saved is not None
    assert saved.state == {"step": 1}
    assert len(said) == 1
    assert "step-0000000002 is corrupt" in said[0]
    assert problem in said[0]


def flip(path):
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


def test_newer_than(store):
    save(store, 1, 2)
    assert store.latest(newer_than=2) is None
    assert store.latest(newer_than=1) is not None


@pytest.mark.parametrize(("attempt", "restart"), [(2, 0), (1, 1)])
def test_an_older_writer_finds_the_newer_and_writes_nothing(store, tmp_path, attempt, restart):
    save(store, 1)
    newer = Store(tmp_path, owner(attempt, restart), keep=2)
    newer.take_ownership()
    with pytest.raises(FencedError, match="nothing was written"):
        save(store, 2)
    with pytest.raises(FencedError):
        store.take_ownership()
    saved = newer.latest()
    assert saved is not None
    assert saved.state == {"step": 1}


def test_another_job_may_take_the_directory_over(store, tmp_path):
    other = Store(tmp_path, owner(job="other"), keep=2)
    other.take_ownership()
    with pytest.raises(FencedError, match="of another job"):
        save(store, 2)


class SlowStore(Store):
    """A store whose disk waits for the test."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.go_on = threading.Event()

    def save(self, *args):
        assert self.go_on.wait(PATIENCE)
        return super().save(*args)


@pytest.fixture
def variable():
    return keras.Variable([1.0, 2.0])


@pytest.fixture
def slow(tmp_path, variable):
    """A store, and a run that saves to it."""
    store = SlowStore(tmp_path, owner(), keep=2)
    store.take_ownership()
    published: list[tuple[int, float]] = []
    resume = CheckpointManager(
        store,
        {"model/0000/v": variable},
        identity={},
        config={},
        run_json="{}",
        published=lambda path, step, seconds: published.append((step, seconds)),
    )
    return store, resume, published


ALONE = Peers(strategy_over(1), workers=1, is_chief=True)


def test_training_goes_on_while_a_save_is_written_and_changes_nothing_of_it(slow, variable):
    store, resume, published = slow
    began = time.monotonic()
    resume.save(ALONE, 1, dict)
    goes_on = time.monotonic()
    variable.assign([8.0, 9.0])
    assert (store.latest(), published) == (None, [])
    waited = time.monotonic() - goes_on
    store.go_on.set()
    resume.save(ALONE, 2, dict)
    assert published[0][0] == 1
    assert waited < published[0][1] < time.monotonic() - began, "the time of the save, and not of the copy alone"
    resume.wait()
    assert [step for step, _ in published] == [1, 2]
    (first,) = store.directory.glob("step-*1/variables.index")
    assert tf.train.load_checkpoint(str(first.with_suffix(""))).get_tensor("model/0000/v").tolist() == [1, 2]


def test_a_save_that_failed_ends_the_run_at_the_next_one(slow, tmp_path):
    store, resume, published = slow
    resume.save(ALONE, 1, dict)
    Store(tmp_path, owner(attempt=2), keep=2).take_ownership()
    store.go_on.set()
    with pytest.raises(FencedError, match="nothing was written"):
        resume.save(ALONE, 2, dict)
    resume.wait()
    assert published == []


def test_the_sums_of_the_metrics_come_back_in_their_order(slow):
    store, resume, _ = slow
    store.go_on.set()
    sums = [np.array(i, np.float32) for i in range(12)]
    resume.save(ALONE, 7, lambda: {"metrics": sums})
    resume.wait()
    assert resume.restore(ALONE)["metrics"] == sums


def small(rate, units=3):
    x = keras.Input((6,), name="x")
    hidden = keras.layers.BatchNormalization(name="norm")(x)
    net = keras.Model(x, keras.layers.Dense(units, name="out")(hidden), name="net")
    net.compile(keras.optimizers.SGD(rate, name="sgd"), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


DATA = (np.random.default_rng(1).normal(size=(16, 6)), np.arange(16) % 3)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A run of two steps with a checkpoint after each, and its weights."""
    output = tmp_path_factory.mktemp("earlier")
    run = train_here(
        lambda: small(0.5), DATA, devices=1, epochs=2, batch=16, seed=1, output=output, checkpoint={"everyEpochs": 1}
    )
    run.built.model.save(output / "model.keras")
    run.built.model.save_weights(output / "model.weights.h5")
    return output, weights_of(run)


@pytest.mark.parametrize("where", ["", "checkpoints/step-0000000002", "model.keras", "model.weights.h5"])
def test_a_run_starts_from_initial_weights(where, earlier, capsys):
    output, expected = earlier
    start = str(output / where)
    # A learning rate of zero keeps the weights; the statistics of BatchNormalization move on.
    run = train_here(lambda: small(0.0), DATA, devices=2, epochs=1, batch=16, seed=2, initialWeights=start)
    for variable, found, wanted in zip(run.built.model.weights, weights_of(run), expected, strict=True):
        assert (found == wanted).all() == ("moving" not in variable.path), variable.path
    assert f"initial weights from {start}" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["", "model.keras"])
def test_a_new_layer_begins_anew_though_the_weights_that_are_there_fit(where, earlier):
    output, expected = earlier
    start = {"initialWeights": str(output / where), "newLayers": ["out"]}
    run = train_here(lambda: small(0.0), DATA, devices=1, epochs=1, batch=16, seed=2, **start)
    found = {variable.path: value for variable, value in zip(run.built.model.weights, weights_of(run), strict=True)}
    assert (found["norm/gamma"] == expected[0]).all()
    assert not any(value.shape == (6, 3) and (found["out/kernel"] == value).all() for value in expected)


def test_a_run_that_resumes_does_not_look_at_initial_weights(earlier):
    output, expected = earlier
    run = train_here(
        lambda: small(0.5), DATA, devices=1, epochs=2, batch=16, seed=1, output=output, initialWeights="/nowhere"
    )
    assert all((a == b).all() for a, b in zip(weights_of(run), expected, strict=True))


def with_adapters():
    net = small(0.5)
    net.get_layer("out").enable_lora(2)
    net.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


@pytest.mark.parametrize("more", [{}, {"newLayers": ["norm"]}])
def test_lora_adapters_learn_on_top_of_initial_weights(more, earlier):
    start = str(earlier[0] / "model.keras")
    run = train_here(with_adapters, DATA, devices=1, epochs=2, batch=16, seed=2, initialWeights=start, **more)
    found = dict(zip((v.path for v in run.built.model.weights), weights_of(run), strict=True))
    adapters = [value for path, value in found.items() if "lora_kernel" in path]
    assert len(adapters) == 2
    assert all(np.abs(value).max() > 0 for value in adapters)
    kernel = next(value for path, value in found.items() if path.endswith("out/kernel"))
    assert any(value.shape == kernel.shape and (value == kernel).all() for value in earlier[1])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "variable model/0004/out/kernel has shape .6, 3. in .* and .6, 4. in the model"),
        ("model.keras", r"does not fit the model, which has out/0 \[6, 4\] \(\[6, 3\] there\), out/1 \[4\] \("),
        ("nothing.keras", "nothing.keras cannot be loaded"),
        ("checkpoints", "there is no whole checkpoint in"),
    ],
)
def test_initial_weights_that_do_not_fit(where, message, earlier):
    start = f"{earlier[0]}/{where}"
    with pytest.raises(ConfigError, match=message) as caught:
        train_here(lambda: small(0.5, units=4), DATA, devices=1, epochs=1, batch=16, seed=1, initialWeights=start)
    if where == "model.keras":
        assert caught.value.fix.endswith('or set newLayers: ["out"] if these are new')


def with_new_head():
    """The old model with a layer more in between, which moves the place of the head, and another head."""
    x = keras.Input((6,))
    hidden = keras.layers.Dense(5, name="new_bridge")(
        keras.layers.Dropout(0.1)(keras.layers.BatchNormalization(name="norm")(x))
    )
    net = keras.Model(x, keras.layers.Dense(4, name="new_head")(hidden))
    net.compile(keras.optimizers.SGD(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


@pytest.mark.parametrize("where", ["", "model.keras", "model.weights.h5"])
def test_a_new_head_goes_on_an_old_model_and_what_begins_anew_is_said(where, earlier, capsys):
    output, expected = earlier
    start = {"initialWeights": str(output / where), "newLayers": ["new_*"]}
    run = train_here(with_new_head, DATA, devices=2, epochs=1, batch=16, seed=2, **start)
    found = {variable.path: value for variable, value in zip(run.built.model.weights, weights_of(run), strict=True)}
    assert (found["norm/gamma"] == expected[0]).all()
    assert expected[0].std() > 0
    assert found["new_head/kernel"].std() > 0
    said = f"initial weights from {output / where}: 4 weights by name; new_bridge, new_head are new; not used: out"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "message", "fix"),
    [
        (["new_haed"], "newLayers: no layer with weights is named 'new_haed'", "did you mean 'new_head'?"),
        (["new_head"], r"which has new_bridge/.* \(nothing there\)", "use weights of a model with the same layers, or"),
        (["*"], r"newLayers is \[\"\*\"\], every layer", "remove initialWeights"),
    ],
)
@pytest.mark.parametrize("where", ["", "model.keras"])
def test_new_layers_that_cannot_be(where, names, message, fix, earlier):
    start = {"initialWeights": str(earlier[0] / where), "newLayers": names}
    with pytest.raises(ConfigError, match=message) as caught:
        train_here(with_new_head, DATA, devices=1, epochs=1, batch=16, seed=2, **start)
    assert caught.value.fix.startswith(fix)


def test_a_full_disk_costs_one_save_and_nothing_of_it_stays(tmp_path):
    large = {"model/0000/kernel": np.random.default_rng(0).normal(size=(512, 512))}
    with small_disk(tmp_path / "disk", "16m") as disk:
        store = Store(disk, owner(), keep=2)
        store.take_ownership()
        store.save(1, large, {"step": 1}, "{}")
        ballast = fill(disk, leave=1 << 20)
        for step in (2, 3, 4):
            with pytest.raises((OSError, tf.errors.OpError), match="No space left on device"):
                store.save(step, large, {"step": step}, "{}")
        assert [path.name for path in store.directory.iterdir() if path.name != "OWNER.json"] == ["step-0000000001"]
        fill(disk)
        with pytest.raises(OSError, match="No space left on device"):
            Store(disk, owner(attempt=2), keep=2).take_ownership()
        assert not [path for path in store.directory.iterdir() if path.name.startswith(".")]
        saved = store.latest()
        assert saved is not None
        assert saved.state == {"step": 1}
        ballast.unlink()
        store.save(5, large, {"step": 5}, "{}")
        saved = store.latest()
        assert saved is not None
        assert saved.state == {"step": 5}
        assert (saved.arrays()["model/0000/kernel"] == large["model/0000/kernel"]).all()


def test_what_a_pod_has_left_of_its_memory_goes_with_a_newer_save_and_with_what_is_forgotten(store):
    for step in (4, 5, 9):
        last_copy(store.directory, step).touch()
    half_of(last_copy(store.directory, 3)).touch()
    save(store, 5)
    assert [path.name for path in last_copies(store.directory)] == ["last-copy-0000000009"]
    store.forget(newer_than=8)
    assert not last_copies(store.directory)


def test_what_a_killed_save_left_behind_goes_with_the_next(store):
    half = store.directory / "step-0000000003"
    half.mkdir()
    (half / "data").write_bytes(b"x" * 1000)
    save(store, 5)
    assert sorted(p.name for p in store.directory.glob("step-*")) == ["step-0000000005"]
