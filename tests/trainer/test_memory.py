"""No step leaves memory behind: what malloc has handed out is counted to the byte, within this process.

From outside (tests/endurance) a leak of less than a kilobyte a step shows only after 10,000 steps and more.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tests.endurance.module import small
from tests.trainer.inprocess import train_module

from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.model.batch import number
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.train import loop

STEPS, EVERY = 800, 20
"""Steps of a run, and from one evaluation and checkpoint to the next."""
SHUFFLED_STEPS = 2400
"""tf.data's shuffle allocates memory again each epoch; steps until freed memory is enough for it."""
MOST = 150
"""Bytes a step: the kept numbers of the first version were 780, and a thread is far more."""


class Mallinfo(ctypes.Structure):
    """mallinfo2(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()  # noqa: SIM905
    )


def in_use() -> int:
    """Bytes that malloc has handed out in this process."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    small.write_files(folder, 640)
    return folder


def left_behind_by(kind, devices, monkeypatch, folder, *, steps=STEPS, **more) -> float:
    """Bytes that each step of a run leaves behind, without its first three tenths.

    Buffers that are full at one time and empty at another move either the middle of the tenths or their mean.
    """
    seen, step = [], loop._one_step

    def counted(run, feed, position):
        if position.step % EVERY == EVERY - 1:
            seen.append(in_use())
        return step(run, feed, position)

    monkeypatch.setattr(loop, "_one_step", counted)
    module = Entrypoint("small", small, {"kind": kind, "folder": str(folder), "rows": 640})
    every = {"everySteps": EVERY}
    how = {"epochs": None, "steps": steps, "batch": 16, "seed": 1, "evaluate": every, "checkpoint": every, **more}
    train_module(module, devices=devices, **how)
    each = steps // EVERY // 10
    lows = [min(seen[at : at + each]) for at in range(3 * each, len(seen), each)]
    found = [(after - before) / (EVERY * each) for before, after in pairwise(lows)]
    return min(statistics.median(found), statistics.mean(found))


@pytest.mark.parametrize(
    ("kind", "devices", "more"),
    [
        ("arrays", 1, {}),
        pytest.param("arrays", 2, {"accumulate": 4, "allReduce": "float16"}, marks=pytest.mark.deep),
        ("arrays", 1, {"best": {"monitor": "loss"}}),
        ("csv", 1, {}),
        ("images", 1, {}),
        pytest.param("tfrecord", 1, {}, marks=pytest.mark.deep),
        pytest.param("tfrecord", 1, {"data": {"cache": "disk"}}, marks=pytest.mark.deep),
        pytest.param("dataset", 1, {"data": {"shuffleWindow": 64}, "steps": SHUFFLED_STEPS}, marks=pytest.mark.deep),
        ("dataset", 1, {"data": {"cache": "memory"}}),
        pytest.param("generator", 1, {"data": {"shuffleWindow": 64, "stepsPerEpoch": 40}}, marks=pytest.mark.deep),
    ],
)
def test_a_step_leaves_no_memory_behind(kind, devices, more, monkeypatch, files):
    assert left_behind_by(kind, devices, monkeypatch, files, **more) < MOST


def test_what_a_step_leaves_behind_is_seen(monkeypatch, files):
    """As tf.constant keeps every Python number that it has seen."""
    kept: list[Any] = []
    beat = Heartbeat.beat

    def leaky(self, phase, step=0):
        kept.append(tf.constant(float(len(kept) + 0.5)))
        beat(self, phase, step)

    monkeypatch.setattr(Heartbeat, "beat", leaky)
    assert left_behind_by("arrays", 1, monkeypatch, files) > 3 * MOST


def test_a_run_that_has_ended_holds_no_file_open(files, tmp_path):
    """Each fit() of a script is a run; a writer of event files has a thread as well."""
    module = Entrypoint("small", small, {"kind": "arrays", "folder": str(files), "rows": 640})
    run = train_module(module, devices=1, epochs=1, batch=64, seed=1, output=tmp_path, evaluate={"everyEpochs": 1})
    assert {file.parent.name for file in tmp_path.glob("tensorboard/*/events*")} == {"train", "validation"}
    held = [file.readlink() for file in Path("/proc/self/fd").iterdir() if file.exists()]
    assert run is not None
    assert [path for path in held if path.is_relative_to(tmp_path)] == []


def test_a_run_that_is_over_leaves_no_graph_behind(files):
    """TensorFlow keeps a graph for ever whose all-reduce has a gradient."""
    module = Entrypoint("small", small, {"kind": "arrays", "folder": str(files), "rows": 64})

    def graphs() -> list[FuncGraph]:
        train_module(module, devices=2, epochs=1, batch=16, seed=1, evaluate={"everyEpochs": 1})
        gc.collect()
        return [known for known in gc.get_objects() if isinstance(known, FuncGraph)]

    # Those of tests before this one may still go; what is kept here can't.
    before = {id(graph): graph for graph in graphs()}
    assert [graph.name for graph in graphs() if id(graph) not in before] == []


def test_a_number_that_changes_is_not_kept():
    """TensorFlow keeps what tf.constant made of a Python number, which is why the trainer has a function of its own."""
    plain, own = 0.123456789, 0.987654321
    before = sys.getrefcount(plain), sys.getrefcount(own)
    assert tf.constant(plain).numpy() == np.float32(plain)
    assert number(own, np.float32).numpy() == np.float32(own)
    assert (sys.getrefcount(plain) > before[0], sys.getrefcount(own) > before[1]) == (True, False)
