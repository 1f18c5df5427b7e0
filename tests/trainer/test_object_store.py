"""Checkpoints in an object store: a local S3 server, and fsspec's store in memory."""

from __future__ import annotations

import tempfile
import uuid

import keras
import numpy as np
import pytest
from tests.trainer.harness import trainer_config
from tests.trainer.inprocess import train_here, weights_of
from tests.trainer.reference import plain_keras_weights

from tfgpujob_trainer.checkpoints.directory import COMMIT, Owner
from tfgpujob_trainer.checkpoints.object_store import ObjectStore
from tfgpujob_trainer.checkpoints.store import store_at
from tfgpujob_trainer.contract.exits import ConfigError, FencedError

ARRAYS = {"model/0000/kernel": np.arange(6.0).reshape(2, 3)}


@pytest.fixture(params=["s3", "memory"])
def url(request):
    """An unused folder."""
    base = request.getfixturevalue("s3") if request.param == "s3" else "memory://runs"
    return f"{base}/{uuid.uuid4().hex}"


def opened(url, directory, attempt=1):
    owner = Owner(job_uid="job", attempt=attempt, replica_restart=0)
    store = store_at(directory, ObjectStore(url), owner, keep=2)
    store.take_ownership()
    return store


def save(store, *steps):
    for step in steps:
        store.save(step, ARRAYS, {"step": step}, "{}")


def test_a_new_pod_with_an_empty_disk_finds_the_newest_checkpoint(url, tmp_path, capsys):
    save(opened(url, tmp_path / "first"), 1, 2, 30)
    assert ObjectStore(url).checkpoints() == ["step-0000000030", "step-0000000002"]
    saved = opened(url, tmp_path / "second").latest()
    assert saved is not None
    assert saved.state == {"step": 30}
    assert (saved.arrays()["model/0000/kernel"] == ARRAYS["model/0000/kernel"]).all()
    assert capsys.readouterr().out == f"tfgpu-train: step-0000000030 fetched from {url}\n"


@pytest.mark.parametrize("last", [COMMIT, "variables.index"])
def test_a_copy_that_broke_off_does_not_exist(last, url, tmp_path, monkeypatch):
    store = opened(url, tmp_path / "first")
    save(store, 1)
    files = store._remote._files
    put = files.put_file

    def fails_late(local, remote):
        if local.endswith(last):
            raise OSError("the network is gone")
        put(local, remote)

    with monkeypatch.context() as patch:
        patch.setattr(files, "put_file", fails_late)
        with pytest.raises(OSError, match="the network is gone"):
            save(store, 2)
    assert ObjectStore(url).checkpoints() == ["step-0000000001"]
    saved = opened(url, tmp_path / "second").latest()
    assert saved is not None
    assert saved.state == {"step": 1}


def test_a_corrupt_copy_is_said_and_the_one_before_it_is_used(url, tmp_path, capsys):
    store = opened(url, tmp_path / "first")
    save(store, 1, 2)
    store._remote._files.pipe_file(store._remote._at("checkpoints/step-0000000002/state.json"), b"{}")
    saved = opened(url, tmp_path / "second").latest()
    assert saved is not None
    assert saved.state == {"step": 1}
    assert "step-0000000002 is corrupt (state.json does not match" in capsys.readouterr().out


def test_a_newer_attempt_on_another_disk_fences_the_older_one(url, tmp_path):
    older = opened(url, tmp_path / "first")
    save(older, 1)
    opened(url, tmp_path / "second", attempt=2)
    with pytest.raises(FencedError, match="nothing was written"):
        save(older, 2)
    assert ObjectStore(url).checkpoints() == ["step-0000000001"]
    with pytest.raises(FencedError):
        opened(url, tmp_path / "third")


def test_a_process_killed_between_the_upload_and_commit_leaves_the_checkpoint_before(
    s3, s3_server, launch_here, tmp_path
):
    url = f"{s3}/{uuid.uuid4().hex}"

    def config(name):
        fields = trainer_config(tmp_path / name)
        return {**fields, "output": {**fields["output"], "store": url}}

    killed = launch_here.start(config("first"))

    def kill(path):
        if path.endswith("step-0000000014/COMMIT"):
            killed.process.kill()
            raise OSError("nobody is there to hear the answer")

    s3_server._server.app.before = kill
    try:
        assert killed.wait() == -9, killed.log
    finally:
        s3_server._server.app.before = lambda _: None
    assert ObjectStore(url).checkpoints() == ["step-0000000007"]
    resumed = launch_here.start(config("second")).ends(0)
    assert f"step-0000000007 fetched from {url}" in resumed.log
    assert "resuming after step 7" in resumed.log
    found = keras.saving.load_model(tmp_path / "second" / "model.keras").get_weights()
    for one, wanted in zip(found, plain_keras_weights(epochs=5), strict=True):
        assert np.abs(one - wanted).max() < 1e-10


def test_an_unknown_protocol_names_the_field():
    with pytest.raises(ConfigError, match=r"trainer.output.store: s4://bucket: .*s4"):
        ObjectStore("s4://bucket")


def test_a_run_goes_on_from_its_object_store_to_the_same_bits(s3, tmp_path, monkeypatch):
    def make_model():
        x = keras.Input((6,), name="x")
        net = keras.Model(x, keras.layers.Dense(3, name="out")(x), name="net")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile(keras.optimizers.AdamW(0.1, name="adamw"), loss)
        return net

    def train(name, *, epochs, seed=1, **more):
        keras.utils.set_random_seed(seed)
        data = (np.random.default_rng(1).normal(size=(20, 6)), np.arange(20) % 3)
        more["checkpoint"] = {"everyEpochs": 1}
        return train_here(
            make_model, data, devices=1, epochs=epochs, batch=8, seed=seed, output=tmp_path / name, **more
        )

    whole = weights_of(train("whole", epochs=4))
    store = f"{s3}/{uuid.uuid4().hex}"
    train("before", epochs=2, store=store)
    resumed = weights_of(train("after", epochs=4, store=store))
    assert all((a == b).all() for a, b in zip(resumed, whole, strict=True))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    tuned = train("tuned", epochs=1, seed=2, initialWeights=store)
    assert [path.name for path in (tmp_path / "temporary").iterdir() if "weights" in path.name] == []
    assert not any((a == b).all() for a, b in zip(weights_of(tuned), whole, strict=True))
