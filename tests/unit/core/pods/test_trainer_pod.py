"""What the bundled trainer gets besides: its configuration, its code, its output."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.pods.built import built, main
from tests.unit.core.simulator import World

from tfgpujob import names
from tfgpujob.core.observed.plan import resolve
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.core.pods.trainer_pod import stop_seconds
from tfgpujob.names import Role


def trained(**trainer: Any) -> dict[str, Any]:
    return built(make.job("OneDevice", trainer={**make.TRAINER, **trainer}))


def mounts(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is mounted where: the volume's source, and the mount's own settings."""
    sources = {volume["name"]: {k: v for k, v in volume.items() if k != "name"} for volume in pod["spec"]["volumes"]}
    return {
        mount["mountPath"]: sources[mount["name"]] | {k: v for k, v in mount.items() if k not in {"name", "mountPath"}}
        for mount in main(pod)["volumeMounts"]
    }


@pytest.mark.parametrize("path", ["/output", "/output/"])
@pytest.mark.parametrize("directory", ["/output", "/output/"])
def test_a_mount_of_the_template_at_the_output_directory_is_used(path: str, directory: str) -> None:
    container = {"name": "tensorflow", "volumeMounts": [{"name": "mine", "mountPath": path}]}
    template = {"spec": {"containers": [container], "volumes": [{"name": "mine", "emptyDir": {}}]}}
    trainer = {**make.TRAINER, "output": {"directory": directory}}
    pod = built(make.job("OneDevice", worker={"template": template}, trainer=trainer))
    at_output = [m for m in main(pod)["volumeMounts"] if m["mountPath"].startswith("/output")]
    assert at_output == [{"name": "mine", "mountPath": path}]
    assert names.OUTPUT_VOLUME not in {volume["name"] for volume in pod["spec"]["volumes"]}


@pytest.mark.parametrize(
    ("code", "mounted"),
    [
        ({"configMap": {"name": "my-code"}}, {"configMap": {"name": "my-code"}, "readOnly": True}),
        (
            {"configMap": {"name": "my-code", "paths": {"net..a.py": "net/a.py"}}},
            {"configMap": {"name": "my-code", "items": [{"key": "net..a.py", "path": "net/a.py"}]}, "readOnly": True},
        ),
        (
            {"volume": {"claimName": "src", "subPath": "v2"}},
            {"persistentVolumeClaim": {"claimName": "src", "readOnly": True}, "readOnly": True, "subPath": "v2"},
        ),
        ({"image": "code:1"}, {"emptyDir": {}, "readOnly": True}),
        ({"git": {"url": "https://a.example/b", "revision": "0" * 40}}, {"emptyDir": {}, "readOnly": True}),
    ],
    ids=["ConfigMap", "folders in a ConfigMap", "volume", "image", "git"],
)
def test_code_comes_to_its_folder(code: dict[str, Any], mounted: dict[str, Any]) -> None:
    assert mounts(trained(code=code))["/code"] == mounted


@pytest.mark.parametrize(
    ("of_pod", "of_container", "user"),
    [({}, {}, 65532), ({"runAsUser": 7}, {}, None), ({}, {"runAsUser": 8}, 8), ({"runAsUser": 7}, {"runAsUser": 8}, 8)],
)
def test_who_copies_is_not_root_and_is_who_trains(of_pod: Any, of_container: Any, user: int | None) -> None:
    """An image that says nothing runs as root, which the pod forbids: it would not start."""
    container = {"name": "tensorflow", "securityContext": of_container, "resources": {"limits": {"memory": "1Gi"}}}
    template = {"spec": {"containers": [container], "securityContext": of_pod}}
    trainer = {**make.TRAINER, "models": {"image": "m:1"}}
    (copy,) = built(make.job("OneDevice", worker={"template": template}, trainer=trainer))["spec"]["initContainers"]
    assert copy["securityContext"].get("runAsUser") == user
    assert copy["resources"] == {"limits": {"memory": "1Gi"}}, "or a quota refuses the pod"
    assert copy["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_an_administrator_may_have_images_copied_all_the_same() -> None:
    spec = make.parsed(make.job("OneDevice", trainer={**make.TRAINER, "code": {"image": "code:1"}}))
    assert resolve(spec, make.CONFIG, image_volumes=True).image_volumes
    assert not resolve(spec, replace(make.CONFIG, image_volumes=False), image_volumes=True).image_volumes


GIT = {"url": "https://git.example.com/a.git", "revision": "0a" * 20}


def test_a_commit_is_fetched_by_the_trainers_image_before_the_trainer_starts() -> None:
    pod = trained(code={"git": {**GIT, "path": "src"}})
    (fetch,) = pod["spec"]["initContainers"]
    assert fetch["image"] == main(pod)["image"]
    assert fetch["command"] == ["python", "-m", "tfgpujob_trainer.fetch_code"]
    (mount,) = fetch["volumeMounts"]
    variables = {variable["name"]: variable["value"] for variable in fetch["env"]}
    assert variables == {
        "TFGPU_GIT_URL": GIT["url"],
        "TFGPU_GIT_COMMIT": GIT["revision"],
        "TFGPU_GIT_PATH": "src",
        "TFGPU_GIT_TARGET": mount["mountPath"],
    }
    assert mounts(pod)["/code"] == {"emptyDir": {}, "readOnly": True}
    assert fetch["securityContext"] == main(pod)["securityContext"]


def test_only_what_fetches_the_code_sees_its_credentials_and_it_goes_by_the_proxy() -> None:
    proxy, other = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}, {"name": "OTHER", "value": "1"}
    template = {"spec": {"containers": [{"name": "tensorflow", "env": [proxy, other]}]}}
    trainer = {**make.TRAINER, "code": {"git": {**GIT, "secretName": "token"}}}
    pod = built(make.job("OneDevice", worker={"template": template}, trainer=trainer))
    (fetch,) = pod["spec"]["initContainers"]
    (volume,) = [volume for volume in pod["spec"]["volumes"] if "secret" in volume]
    assert volume["secret"]["secretName"] == "token"
    assert {item["key"] for item in volume["secret"]["items"]} == {"username", "password", "ca.crt"}
    assert volume["secret"]["optional"] is True, "any of these may be missing"
    (mount,) = [mount for mount in fetch["volumeMounts"] if mount["name"] == volume["name"]]
    assert {"name": "TFGPU_GIT_CREDENTIALS", "value": mount["mountPath"]} in fetch["env"]
    assert proxy in fetch["env"]
    assert other not in fetch["env"]
    assert volume["name"] not in {mount["name"] for mount in main(pod)["volumeMounts"]}
    assert "token" not in json.dumps(main(pod))


def test_what_fetches_the_code_starts_wherever_the_trainer_starts() -> None:
    """With an image that is on the node, as that user, in a namespace with a quota; and it needs no GPU."""
    room = {"cpu": "2", "memory": "4Gi"}
    trainer = {
        "name": "tensorflow",
        "imagePullPolicy": "Never",
        "securityContext": {"runAsUser": 1000},
        "resources": {"limits": {**room, "nvidia.com/gpu": 1}, "requests": room},
    }
    template = {"spec": {"containers": [trainer]}}
    job = make.job("OneDevice", worker={"template": template}, trainer={**make.TRAINER, "code": {"git": GIT}})
    (fetch,) = built(job)["spec"]["initContainers"]
    assert fetch["imagePullPolicy"] == "Never"
    assert fetch["securityContext"]["runAsUser"] == 1000
    assert fetch["securityContext"]["allowPrivilegeEscalation"] is False
    assert fetch["resources"] == {"limits": room, "requests": room}


@pytest.mark.parametrize(
    ("took", "seconds"), [(0, 120), (1, 120), (20, 120), (21, 123), (100, 360), (1180, 3600), (2**31 - 1, 3600)]
)
def test_a_save_that_takes_longer_gets_its_time(took: int, seconds: int) -> None:
    assert stop_seconds(took) == seconds


def test_the_next_pods_have_time_for_the_last_save_unless_the_template_says_how_long() -> None:
    world = World.running(make.job(worker=2))
    world.tells("train-worker-0", lastCheckpoint={"step": 4, "directory": "/output/c", "seconds": 100})
    given = [world.pod(name)["spec"]["terminationGracePeriodSeconds"] for name in world.pods]
    world.exits("train-worker-1", 137)
    world.advance(minutes=1)
    assert (given, world.attempts()) == ([120, 120], {"2"})
    assert [world.pod(name)["spec"]["terminationGracePeriodSeconds"] for name in world.pods] == [360, 360]
    own = make.job("OneDevice", worker={"template": {"spec": {"terminationGracePeriodSeconds": 5}}})
    built_next = build_pod(own, make.parsed(own), make.plan(own), Replica(Role.WORKER, 0, 2, save_seconds=100))
    assert built_next["spec"]["terminationGracePeriodSeconds"] == 5
