"""What the pods of each role and strategy are like, and what their programs find."""

from __future__ import annotations

import json

from tests.integration.kube import Object
from tests.integration.workspace import SHOW_ENVIRONMENT, Workspace


def run(workspace: Workspace, job: Object) -> str:
    """Runs the job until all its pods have ended; gives its name."""
    # ps pods are deleted when the job is over, and all that is known of them is what they printed.
    job["spec"]["runPolicy"] = {"cleanPodPolicy": "None"}
    name = workspace.submit(job)
    assert workspace.finished(name) == "Succeeded"

    def all_ended() -> bool:
        return all(pod["status"]["phase"] == "Succeeded" for pod in workspace.pods(name).values())

    workspace.eventually(all_ended, "every pod has ended")
    return name


def printed(workspace: Workspace, job: Object) -> dict[str, dict[str, str]]:
    """Runs the job; what each of its programs has printed, by pod."""
    return {pod: workspace.printed(pod) for pod in workspace.pods(run(workspace, job))}


def test_parameter_server_gets_a_chief_and_each_task_the_cluster_it_may_know(workspace: Workspace) -> None:
    """Sparse TF_CONFIG: a worker knows itself and every ps, a ps only itself, the chief all but the evaluator."""
    roles = {"worker": {"replicas": 2}, "ps": {"replicas": 2}, "evaluator": {}}
    job = workspace.new_job("ps", SHOW_ENVIRONMENT, strategy="ParameterServer", roles=roles)
    # The chief is added by the operator, so its program is the image's own, unless it is given one.
    template = job["spec"]["replicaSpecs"]["worker"]["template"]
    job["spec"]["replicaSpecs"]["chief"] = {"template": template}
    found = printed(workspace, job)
    assert sorted(found) == ["ps-chief-0", "ps-evaluator-0", "ps-ps-0", "ps-ps-1", "ps-worker-0", "ps-worker-1"]

    def at(task: str) -> str:
        return f"ps-{task}.ps.{workspace.namespace}.svc:2222"

    ps = [at("ps-0"), at("ps-1")]
    configs = {pod: json.loads(env["TF_CONFIG"]) for pod, env in found.items()}
    assert configs["ps-chief-0"] == {
        "cluster": {"chief": [at("chief-0")], "worker": [at("worker-0"), at("worker-1")], "ps": ps},
        "task": {"type": "chief", "index": 0},
    }
    assert configs["ps-worker-1"] == {
        "cluster": {"worker": {"1": at("worker-1")}, "ps": ps},
        "task": {"type": "worker", "index": 1},
    }
    assert configs["ps-ps-1"] == {"cluster": {"ps": {"1": at("ps-1")}}, "task": {"type": "ps", "index": 1}}
    assert configs["ps-evaluator-0"] == {
        "cluster": {"evaluator": [at("evaluator-0")]},
        "task": {"type": "evaluator", "index": 0},
    }


def test_parameter_server_without_a_chief_gets_one(workspace: Workspace) -> None:
    """It runs the job's image with the image's own command."""
    roles = {"worker": {"replicas": 1}, "ps": {"replicas": 1}}
    name = workspace.submit(workspace.new_job("ps", strategy="ParameterServer", roles=roles))
    workspace.eventually(lambda: "ps-chief-0" in workspace.pods(name), "the chief is added")
    container = workspace.pods(name)["ps-chief-0"]["spec"]["containers"][0]
    assert container["image"] == workspace.image
    assert "command" not in container
    assert "nvidia.com/gpu" not in (container["resources"].get("limits") or {})


def test_custom_gets_the_tf_config_of_a_tfjob(workspace: Workspace) -> None:
    """All roles but the evaluator, the same for all but the task."""
    roles = {"chief": {}, "worker": {"replicas": 1}, "ps": {"replicas": 1}}
    found = printed(workspace, workspace.new_job("own", SHOW_ENVIRONMENT, strategy="Custom", roles=roles))
    configs = [json.loads(env["TF_CONFIG"]) for env in found.values()]
    assert sorted(config.pop("task")["type"] for config in configs) == ["chief", "ps", "worker"]
    assert configs[0] == configs[1] == configs[2]
    assert sorted(configs[0]["cluster"]) == ["chief", "ps", "worker"]


def test_the_environment_of_a_program_is_the_contract(workspace: Workspace) -> None:
    roles = {"chief": {}, "worker": {"replicas": 1}}
    job = workspace.new_job("env", SHOW_ENVIRONMENT, roles=roles)
    job["spec"]["gpu"]["memory"] = {"limitMiB": 512}
    env = printed(workspace, job)["env-worker-0"]
    uid = workspace.kube.get("TFGPUJob", workspace.namespace, "env")["metadata"]["uid"]
    ours = {name: value for name, value in env.items() if name.startswith("TFGPU_")}
    assert ours == {
        "TFGPU_STRATEGY": "MultiWorkerMirrored",
        "TFGPU_JOB": "env",
        "TFGPU_NAMESPACE": workspace.namespace,
        "TFGPU_JOB_UID": uid,
        "TFGPU_REPLICA_TYPE": "worker",
        "TFGPU_REPLICA_INDEX": "0",
        "TFGPU_ATTEMPT": "1",
        "TFGPU_REPLICA_RESTART": "0",
        "TFGPU_GPUS": "0",
        "TFGPU_GPU_MEMORY_GROWTH": "false",
        "TFGPU_GPU_MEMORY_LIMIT_MIB": "512",
    }
    assert env["HOSTNAME"] == "env-worker-0"
    assert not [name for name in env if name.endswith("_SERVICE_HOST") and name != "KUBERNETES_SERVICE_HOST"]


LOOK_AROUND = """
import json, os, socket
def mount(path):
    return next((line.split()[2] for line in open("/proc/mounts") if line.split()[1] == path), None)
space = os.statvfs("/dev/shm")
print(json.dumps({
    "shm": mount("/dev/shm"), "shm_bytes": str(space.f_frsize * space.f_blocks),
    "token": str(os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token")),
    "hostname": socket.gethostname(),
    "own_address": socket.gethostbyname(f"{socket.gethostname()}.{os.environ['TFGPU_JOB']}"),
    "host_name_address": socket.gethostbyname(socket.gethostname()),
}))
"""


def test_a_pod_has_shared_memory_its_own_address_and_no_token(workspace: Workspace) -> None:
    """/dev/shm is memory and larger than the runtime's 64 MiB; the pod's own name resolves to it by the service."""
    found = printed(workspace, workspace.new_job("room", LOOK_AROUND))
    for pod, seen in found.items():
        assert seen["shm"] == "tmpfs"
        assert int(seen["shm_bytes"]) > 64 * 2**20
        assert seen["token"] == "False"
        assert seen["hostname"] == pod
        assert seen["own_address"] == seen["host_name_address"]
    for made in workspace.pods("room").values():
        assert made["spec"]["subdomain"] == "room"
        assert made["spec"]["restartPolicy"] == "Never"
        assert made["spec"]["enableServiceLinks"] is False


def test_pods_and_service_carry_the_labels_and_owner_that_others_rely_on(workspace: Workspace) -> None:
    run(workspace, workspace.new_job("labels"))
    job = workspace.kube.get("TFGPUJob", workspace.namespace, "labels")
    pod = workspace.pods("labels")["labels-worker-1"]
    expected = {
        "tfgpu.dev/job-name": "labels",
        "tfgpu.dev/replica-type": "worker",
        "tfgpu.dev/replica-index": "1",
        "tfgpu.dev/attempt": "1",
        "tfgpu.dev/replica-restart": "0",
        "app.kubernetes.io/instance": "labels",
        "app.kubernetes.io/component": "worker",
    }
    assert expected.items() <= pod["metadata"]["labels"].items()
    service = workspace.kube.get("Service", workspace.namespace, "labels")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    for owned in (pod, service):
        (owner,) = owned["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (job["metadata"]["uid"], True)


def test_gpus_are_requested_by_the_roles_that_compute(workspace: Workspace) -> None:
    """By default one each for chief and worker; the resource's name and number can be chosen. Nothing needs to run."""
    job = workspace.new_job("gpus", roles={"chief": {}, "worker": {"gpus": 3}, "evaluator": {}})
    job["spec"]["gpu"] = {"resourceName": "example.com/accelerator", "perReplica": 2}
    name = workspace.submit(job)
    workspace.eventually(lambda: len(workspace.pods(name)) == 3, "three pods")
    limits = {pod: o["spec"]["containers"][0]["resources"]["limits"] for pod, o in workspace.pods(name).items()}
    assert {pod: limit["example.com/accelerator"] for pod, limit in limits.items()} == {
        "gpus-chief-0": "2",
        "gpus-worker-0": "3",
        "gpus-evaluator-0": "2",
    }
