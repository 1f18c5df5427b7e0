"""TFGPU_* variables and TF_CONFIG."""

from __future__ import annotations

import json

import pytest

from tfgpujob_trainer.contract import environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.resize import resized


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
        (
            {"TF_CONFIG": tf_config({"worker": {"0": "w0:1"}, "ps": ["p:1"]}, "worker", 1)},
            "TF_CONFIG is of worker-1, and its cluster names 1 of role worker",
            "name every task",
        ),
        ({"TF_CONFIG": tf_config({"worker": ["w0:1"]}, "chief", 0)}, "its cluster names 0 of role chief", "name every"),
        (
            {"TFGPU_GPU_MEMORY_GROWTH": "true", "TFGPU_GPU_MEMORY_LIMIT_MIB": "100"},
            "TFGPU_GPU_MEMORY_GROWTH is true and TFGPU_GPU_MEMORY_LIMIT_MIB is set",
            "keep one of them",
        ),
        ({"KERAS_BACKEND": "jax"}, "KERAS_BACKEND is jax", "remove it"),
        ({"TFGPU_GPUS": "two"}, "TFGPU_GPUS is 'two'", "it must be a whole number of at least 0"),
    ],
)
def test_mistakes_name_the_variable(env, message, fix):
    with pytest.raises(ConfigError) as caught:
        environment.read(env)
    assert message in str(caught.value)
    assert caught.value.fix.startswith(fix)


def test_one_process_sees_all_gpus_of_its_pod():
    env = {"TFGPU_GPUS": "4", "TFGPU_REPLICA_INDEX": "1"}
    assert environment.processes(env) == [env]
    shared = {"TFGPU_GPUS": "1", "TFGPU_PROCESSES_PER_GPU": "1"}
    assert environment.processes(shared) == [shared]


def test_each_process_of_a_pod_is_a_task_with_one_gpu():
    addresses = [f"w{i // 4}:{2222 + i % 4}" for i in range(8)]
    pod = {
        "TF_CONFIG": tf_config({"worker": addresses}, "worker", 4),
        "TFGPU_STRATEGY": "MultiWorkerMirrored",
        "TFGPU_REPLICA_TYPE": "worker",
        "TFGPU_REPLICA_INDEX": "1",
        "TFGPU_GPUS": "2",
        "TFGPU_PROCESSES_PER_GPU": "2",
        "TFGPU_JOB_UID": "u",
    }
    found = environment.processes(pod)
    assert [env["CUDA_VISIBLE_DEVICES"] for env in found] == ["0", "0", "1", "1"]
    assert [json.loads(env["TF_CONFIG"])["task"]["index"] for env in found] == [4, 5, 6, 7]
    tasks = [environment.read(env) for env in found]
    assert [task.position for task in tasks] == [4, 5, 6, 7]
    assert [(task.gpus, task.processes_per_gpu) for task in tasks] == [(1, 2)] * 4
    assert [task.progress_port for task in tasks] == [8080, 0, 0, 0]
    assert tasks[3].name == "worker-7"
    chosen = environment.processes({**pod, "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"})
    assert [env["CUDA_VISIBLE_DEVICES"] for env in chosen] == ["GPU-a", "GPU-a", "GPU-b", "GPU-b"]
    too_few = environment.processes({**pod, "CUDA_VISIBLE_DEVICES": "GPU-a"})
    assert [env["CUDA_VISIBLE_DEVICES"] for env in too_few] == ["GPU-a", "GPU-a", "", ""]


def test_processes_for_gpus_that_are_not_there_are_refused():
    with pytest.raises(ConfigError, match="there is no GPU"):
        environment.processes({"TFGPU_GPUS": "0", "TFGPU_PROCESSES_PER_GPU": "2"})


def test_processes_that_predict_share_the_rows_of_all_pods():
    pod = {"TFGPU_STRATEGY": "Custom", "TFGPU_REPLICAS": "3", "TFGPU_REPLICA_INDEX": "2", "TFGPU_GPUS": "1"}
    tasks = [environment.read(env) for env in environment.processes({**pod, "TFGPU_PROCESSES_PER_GPU": "2"})]
    assert [(task.index, task.replicas) for task in tasks] == [(4, 6), (5, 6)]


HOSTS = [f"job-worker-0-worker-{i}.job.ns.svc:{port}" for i in range(12) for port in (2222, 2223)]


@pytest.mark.parametrize("given", [1, 2, 5])
@pytest.mark.parametrize("workers", [1, 2, 12])
def test_another_number_of_workers_has_the_tf_config_that_the_operator_would_give(given, workers):
    cluster = {"chief": ["c:1"], "worker": HOSTS[: 2 * given]}
    found = json.loads(resized(tf_config(cluster, "worker", 2), workers, 2))
    assert found == {
        "cluster": {"chief": ["c:1"], "worker": HOSTS[: 2 * workers]},
        "task": {"type": "worker", "index": 2},
    }


@pytest.mark.parametrize(
    "given",
    [[], ["a:1"], ["a:1", "b:1"], ["w-1:1", "w-2:1", "w-4:1"], ["a-worker-1:1"], ["x-worker-0:1", "y-worker-1:1"]],
)
def test_hosts_that_are_not_numbered_are_not_guessed(given):
    with pytest.raises(ValueError, match="in TF_CONFIG"):
        resized(tf_config({"worker": given}, "worker", 0), 3)


def test_a_pod_knows_whether_its_gang_is_resized_and_whether_it_joins():
    cluster = {"worker": ["w-worker-0:1"]}
    told = {"TF_CONFIG": tf_config(cluster, "worker", 0), "TFGPU_RECOVERY": "InPlace"}
    told |= {"TFGPU_RECOVERY_LEADER": "l:1", "TFGPU_RECOVERY_TOKEN": "t"}
    rigid = environment.read(told)
    assert (rigid.recovery, rigid.joins) == (environment.Recovery(budget=6), False)
    joins = environment.read({**told, "TFGPU_RECOVERY_RESIZE": "1", "TFGPU_RECOVERY_JOINS": "1"})
    assert joins.recovery == environment.Recovery(budget=6, leader=("l", 1), token="t", resizable=True)
    assert joins.joins
    spares = {**told, "TFGPU_RECOVERY_RESIZE": "1", "TFGPU_RECOVERY_LEAST": "1", "TFGPU_RECOVERY_SPARES": "2"}
    leads = environment.Recovery(budget=6, leader=("l", 1), token="t", resizable=True, least=1, spares=2)
    assert environment.read(spares).recovery == leads
    aimless = environment.read({**spares, "TFGPU_RECOVERY_LEAST": ""}).recovery
    assert aimless == environment.Recovery(budget=6, leader=("l", 1), token="t", resizable=True)
    later = environment.read({"TFGPU_ROUND": "5", "TFGPU_IN_PLACE_RESTARTS": "2"})
    assert (later.round, later.in_place_restarts) == (5, 2)


@pytest.mark.parametrize(("role", "alone"), [("chief", True), ("worker", False), ("ps", False)])
def test_of_those_under_parameter_server_only_the_chief_can_recover_by_itself(role, alone):
    cluster = {"chief": ["c:1"], "worker": ["w:1"], "ps": ["p:1"]}
    told = {"TF_CONFIG": tf_config(cluster, role, 0), "TFGPU_RECOVERY": "InPlace", "TFGPU_RECOVERY_BUDGET": "3"}
    assert environment.read(told).recovery == (environment.Recovery(budget=3) if alone else None)
    led = {**told, "TFGPU_RECOVERY_LEADER": "c:8081", "TFGPU_RECOVERY_TOKEN": "t"}
    assert environment.read(led).recovery == environment.Recovery(budget=3, leader=("c", 8081), token="t")
    assert environment.read({**led, "TFGPU_RECOVERY": "Pods"}).recovery is None
