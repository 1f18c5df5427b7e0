"""TFGPU_* variables and TF_CONFIG."""

from __future__ import annotations

import json

import pytest

from tfgpujob_trainer import environment
from tfgpujob_trainer.exits import ConfigError


def tf_config(cluster, role, index):
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


def test_a_bare_shell_is_one_device():
    env = environment.read({})
    assert env.strategy == "OneDevice"
    assert env.is_chief
    assert env.attempt == 1
    assert env.gpus is None
    assert env.memory_growth


def test_the_chief_comes_before_the_workers():
    cluster = {"chief": ["c:1"], "worker": ["w0:1", "w1:1"]}
    chief = environment.read({"TF_CONFIG": tf_config(cluster, "chief", 0)})
    worker = environment.read({"TF_CONFIG": tf_config(cluster, "worker", 1)})
    assert (chief.position, chief.is_chief) == (0, True)
    assert (worker.position, worker.is_chief) == (2, False)
    assert worker.peers == ("c:1", "w0:1", "w1:1")


def test_an_evaluator_is_no_member_of_the_cluster():
    env = environment.read(
        {
            "TF_CONFIG": tf_config({"evaluator": ["e:1"]}, "evaluator", 0),
            "TFGPU_STRATEGY": "MultiWorkerMirrored",
            "TFGPU_REPLICA_TYPE": "evaluator",
        }
    )
    assert env.is_evaluator
    assert not env.is_chief
    assert env.strategy == "OneDevice"
    assert env.peers == ()


@pytest.mark.parametrize(
    ("env", "message", "fix"),
    [
        ({"TFGPU_STRATEGY": "Miror"}, "TFGPU_STRATEGY is 'Miror'", "did you mean 'Mirrored'?"),
        ({"TFGPU_STRATEGY": "ParameterServer"}, "ParameterServer without TF_CONFIG", "set TF_CONFIG"),
        ({"TFGPU_STRATEGY": "MultiWorkerMirrored"}, "without TF_CONFIG", "set TF_CONFIG"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG cannot be read", ""),
        ({"TFGPU_GPUS": "two"}, "TFGPU_GPUS is 'two'", "it must be a whole number of at least 0"),
    ],
)
def test_mistakes_name_the_variable(env, message, fix):
    with pytest.raises(ConfigError) as caught:
        environment.read(env)
    assert message in str(caught.value)
    assert caught.value.fix.startswith(fix)
