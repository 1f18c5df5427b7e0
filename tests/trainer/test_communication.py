"""spec.trainer.communication: what TensorFlow is given, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.trainer.harness import Launcher, Task, trainer_config
from tests.trainer.inprocess import strategy_over
from tests.trainer.reference import plain_keras_weights

from tfgpujob_trainer.cluster.replica_sum import sum_over_replicas
from tfgpujob_trainer.cluster.strategy import build_strategy
from tfgpujob_trainer.contract.environment import Environment

HERE = Path(__file__).parent
TELLS_HINTS = """
import logging
logging.basicConfig(level=logging.INFO)
from tensorflow.python.ops import collective_ops
_all_reduce = collective_ops.all_reduce_v2
def _told(*args, **kwargs):
    print("all_reduce_v2 is given", kwargs["communication_hint"], args[0].dtype.name, flush=True)
    return _all_reduce(*args, **kwargs)
collective_ops.all_reduce_v2 = _told
"""
"""Prepended to a program: prints the arguments of TensorFlow's own operation, and the type of what it sums. It logs as
many a script does, which has TensorFlow say each collective twice."""
PROGRAMS = {
    "user_module.py": {},
    "plain_script.py": {"globalBatchSize": None, "epochs": None},
}


def two_workers(launch: Launcher, program: str, name: str, **fields: str) -> Task:
    code, output = launch.directory / name, launch.directory / f"{name}-output"
    code.mkdir()
    (code / program).write_text(TELLS_HINTS + (HERE / program).read_text())
    settings = trainer_config(output, entrypoint=program, **(PROGRAMS[program] | fields))
    given = {key: value for key, value in settings.items() if value is not None}
    env = {i: {"TFGPU_CODE_DIR": str(code), "TEST_OUT": str(output / f"out{i}")} for i in range(2)}
    tasks = launch.start_workers(given, env=env)
    assert [t.wait() for t in tasks] == [0, 0], tasks[0].log + tasks[1].log
    return tasks[0]


def hints(task: Task) -> set[str]:
    return set(re.findall(r"all_reduce_v2 is given (\w+)", task.log))


@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=pytest.mark.deep if more else ()) for name, more in PROGRAMS.items()]
)
def test_tensorflow_is_given_ring_and_the_result_is_the_same(launch, program):
    ring = two_workers(launch, program, f"ring-{program}", communication="Ring")
    assert hints(ring) == {"RING"}
    assert "Collective all_reduce" not in ring.log
    assert not re.findall(r"all_reduce_v2 is given RING (?:int32|bfloat16)", ring.log), "refused on a GPU"
    if program == "plain_script.py":
        auto = two_workers(launch, program, f"auto-{program}")
        assert hints(auto) == {"AUTO"}
        splits = [task.ended["summary"]["splits"]["train"]["loss"] for task in (ring, auto)]
        assert abs(splits[0] - splits[1]) < 1e-12
        return
    found = keras.saving.load_model(launch.directory / f"ring-{program}-output/model.keras").get_weights()
    expected = plain_keras_weights(epochs=5)
    assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) < 1e-10


def test_one_replica_and_an_evaluator_have_nothing_to_choose():
    for env in (Environment(), Environment(strategy="Mirrored", role="evaluator")):
        for communication in ("Auto", "Ring", "NCCL", "HierarchicalCopy"):
            assert build_strategy(env, ["/cpu:0"], communication).num_replicas_in_sync == 1


def test_nccl_on_cpus_in_the_place_of_granted_gpus_is_left_to_tensorflow(capfd):
    build_strategy(Environment(strategy="Mirrored", gpus=1), ["/cpu:0"], "NCCL")
    assert "TensorFlow chooses instead" in "".join(capfd.readouterr())


def test_mirrored_is_given_the_hierarchical_copy():
    strategy = build_strategy(Environment(strategy="Mirrored"), ["/cpu:0", "/cpu:1"], "HierarchicalCopy")
    assert isinstance(strategy.extended._cross_device_ops, tf.distribute.HierarchicalCopyAllReduce)

    @tf.function
    def step():
        def replica():
            context = tf.distribute.get_replica_context()
            own = tf.range(10, dtype=tf.float64) * tf.cast(context.replica_id_in_sync_group + 1, tf.float64)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

        return strategy.experimental_local_results(strategy.run(replica))

    for sums in step():
        assert np.abs(sums - 3 * np.arange(10)).max() < 1e-12


def type_of(value):
    """Type of a value on each replica: a tensor or IndexedSlices."""
    while not hasattr(value, "dtype"):
        value = value[0] if isinstance(value, list | tuple) else value.values
    return value.dtype.name


@pytest.mark.parametrize(("dtype", "given"), [("int32", "int64"), ("bfloat16", "float32"), ("float64", "float64")])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_sum_keeps_its_type_and_is_taken_in_one_that_gpus_can_sum(monkeypatch, dtype, given, sparse):
    strategy, seen = strategy_over(2), set[str]()
    reduce_to = strategy.extended.batch_reduce_to

    def told(operation, pairs, *more):
        seen.update(type_of(tensor) for tensor, _ in pairs)
        return reduce_to(operation, pairs, *more)

    monkeypatch.setattr(strategy.extended, "batch_reduce_to", told)

    def replica():
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        values = tf.cast(tf.stack([index + 1, 3]), dtype)
        total = sum_over_replicas(tf.IndexedSlices(values, tf.range(2), tf.constant([2])) if sparse else values)
        return tf.convert_to_tensor(total)

    totals = strategy.experimental_local_results(strategy.run(tf.function(replica)))
    assert [(t.dtype.name, tf.cast(t, tf.int32).numpy().tolist()) for t in totals] == [(dtype, [3, 6])] * 2
    assert seen == {given}
