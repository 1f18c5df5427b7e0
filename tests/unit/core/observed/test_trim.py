"""Kubernetes objects, trimmed. An API server leaves out what is empty."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob import names
from tfgpujob.core.observed.trim import trim_dependent, trim_job, trim_pod
from tfgpujob_contract.variables import Variable

OWNER = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "train", "uid": "job-uid", "controller": True}


TRAINS = {names.ANNOTATION_TRAINER_CONFIG: "{}"}
T = tuple(f"2026-01-01T00:00:0{second}Z" for second in range(4))


def pod(**parts: Any) -> dict[str, Any]:
    return {"metadata": {"name": "train-worker-0", **parts.pop("metadata", {})}, **parts}


def ended(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "tensorflow", "state": {"terminated": state}}]}


def test_a_pod_that_has_only_a_name() -> None:
    found = trim_pod(pod())
    assert (found.name, found.uid, found.job_name, found.owner_uid) == ("train-worker-0", "", "", "")
    assert (found.role, found.index, found.attempt, found.replica_restart) == ("", -1, 0, 0)
    assert (found.phase, found.ready, found.deleting, found.disruption) == ("Pending", False, False, "")
    assert found.termination is None
    assert found.ip == ""


def test_a_pod_of_ours() -> None:
    labels = {
        names.LABEL_JOB_NAME: "train",
        names.LABEL_REPLICA_TYPE: "worker",
        names.LABEL_REPLICA_INDEX: "3",
        names.LABEL_ATTEMPT: "2",
        names.LABEL_REPLICA_RESTART: "1",
    }
    metadata = {"uid": "u", "resourceVersion": "7", "labels": labels, "ownerReferences": [OWNER]}
    running = {"name": "tensorflow", "ready": True, "state": {"running": {"startedAt": T[3]}}}
    gate = {"name": names.GATE_CONTAINER, "state": {"terminated": {"startedAt": T[1], "finishedAt": T[2]}}}
    sidecar = {"name": "logger", "state": {"terminated": {"exitCode": 1}}}
    status: dict[str, Any] = {"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": [sidecar, running]}
    status |= {"initContainerStatuses": [gate]}
    status |= {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": T[0]}]}
    found = trim_pod(pod(metadata=metadata, spec={"nodeName": "n1"}, status=status))
    assert (found.scheduled_at, found.gate_began, found.gate_ended, found.program_began) == T
    assert (found.job_name, found.role, found.index, found.attempt) == ("train", "worker", 3, 2)
    assert (found.owner_uid, found.node, found.ready) == ("job-uid", "n1", True)
    assert found.ip == "10.1.2.3"
    assert found.termination is None, "a sidecar's end is none of the replica's"


def test_what_a_pod_lacks_is_known_until_it_has_a_node() -> None:
    def waits(message: str, **parts: Any) -> dict[str, Any]:
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        return pod(status={"conditions": [unscheduled]}, **parts)

    lacks = trim_pod(waits("0/4 nodes are available: 4 Insufficient cpu."))
    waiting = trim_pod(waits("0/1 nodes are available: 1 rejection in Unreserve."), lacks)
    assert (waiting.waiting_message, waiting.no_room) == (
        "0/1 nodes are available: 1 rejection in Unreserve.",
        "0/4 nodes are available: 4 Insufficient cpu.",
    )
    assert trim_pod(waits("0/4 nodes are available: 4 Insufficient memory."), waiting).no_room.endswith("memory.")
    assert trim_pod(pod(spec={"nodeName": "n1"}), waiting).no_room == ""


@pytest.mark.parametrize(
    ("container", "read"),
    [
        (names.FETCH_CONTAINER, True),
        (names.CODE_VOLUME, True),
        (names.MODELS_VOLUME, True),
        ("of-the-template", True),
        (names.GATE_CONTAINER, True),
    ],
)
def test_f3_an_init_container_that_failed_is_how_the_replica_ended(container: str, read: bool) -> None:
    said = {"exitCode": 2, "reason": "Error", "message": "no commit", "finishedAt": T[1]}
    waits = {"name": "tensorflow", "state": {"waiting": {"reason": "PodInitializing"}}}
    fetch = {"name": container, "state": {"terminated": said}}
    found = trim_pod(
        pod(status={"phase": "Failed", "initContainerStatuses": [fetch], "containerStatuses": [waits]})
    ).termination
    assert (found is not None) == read
    if found is not None:
        assert (found.exit_code, found.message, found.finished_at) == (2, "no commit", T[1])
        assert (found.container, found.is_init) == (container, True)


@pytest.mark.parametrize(
    ("other", "code", "said"),
    [
        ((137, T[0]), 1, "Its container proxy had ended with exit code 137 (OOMKilled)."),
        ((137, T[1]), 1, ""),
        ((137, T[0]), 0, ""),
        ((0, T[0]), 1, ""),
    ],
)
def test_a_container_that_failed_before_the_program_did_is_named(other: tuple[int, str], code: int, said: str) -> None:
    ends = {
        "tensorflow": {"exitCode": code, "finishedAt": T[1]},
        "proxy": {"exitCode": other[0], "reason": "OOMKilled", "finishedAt": other[1]},
    }
    statuses = [{"name": name, "state": {"terminated": end}} for name, end in ends.items()]
    assert trim_pod(pod(status={"phase": "Failed", "containerStatuses": statuses})).status_message == said


def test_f3_of_several_containers_the_first_to_fail_ended_the_pod_and_a_sidecar_last() -> None:
    def end(name: str, code: int, at: str) -> dict[str, Any]:
        return {"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": at}}}

    spec = {"initContainers": [{"name": "proxy", "restartPolicy": "Always"}, {"name": "a"}, {"name": "b"}]}
    waits = {"name": "tensorflow", "state": {"waiting": {"reason": "PodInitializing"}}}
    inits = [end("proxy", 137, T[1]), end("a", 0, T[0]), end("b", 3, T[1])]
    status: dict[str, Any] = {"phase": "Failed", "initContainerStatuses": inits, "containerStatuses": [waits]}
    found = trim_pod(pod(spec=spec, status=status)).termination
    assert found is not None
    assert (found.container, found.exit_code) == ("b", 3)
    assert trim_pod(pod(spec=spec, status={**status, "phase": "Pending"})).termination is None
    gave_up = [end(names.GATE_CONTAINER, names.GATE_GAVE_UP, T[0])]
    assert trim_pod(pod(status={**status, "initContainerStatuses": gave_up})).termination is None
    log = {"phase": "Failed", "containerStatuses": [waits, end("log", 7, T[2])]}
    found = trim_pod(pod(status=log)).termination
    assert found is not None
    assert (found.container, found.is_init) == ("log", False)


CODE, MODELS = f"sha256:{'c' * 64}", f"sha256:{'d' * 64}"


def test_which_images_code_and_models_were_copied_from() -> None:
    copies = [
        {"name": names.CODE_VOLUME, "imageID": f"docker.io/a/code@{CODE}"},
        {"name": names.MODELS_VOLUME, "imageID": MODELS},
        {"name": names.GATE_CONTAINER, "imageID": f"docker.io/a/operator@sha256:{'e' * 64}"},
    ]
    found = trim_pod(pod(status={"initContainerStatuses": copies}))
    assert (found.code_digest, found.models_digest) == (CODE, MODELS)


def test_which_images_code_and_models_are_mounted_from() -> None:
    volumes = [
        {"name": names.CODE_VOLUME, "volumeStatus": {"image": {"imageRef": f"a/code@{CODE}"}}},
        {"name": names.OUTPUT_VOLUME, "volumeStatus": {"image": {"imageRef": f"a/b@{MODELS}"}}},
    ]
    found = trim_pod(pod(status={"containerStatuses": [{"name": names.CONTAINER, "volumeMounts": volumes}]}))
    assert (found.code_digest, found.models_digest) == (CODE, "")


@pytest.mark.parametrize("told", [None, "", 7, "a/code:1", "sha256:short"])
def test_an_image_whose_digest_is_not_told(told: Any) -> None:
    status = {"initContainerStatuses": [{"name": names.CODE_VOLUME, "imageID": told}]}
    assert trim_pod(pod(status=status)).code_digest == ""


def test_how_code_was_fetched_says_nothing_of_the_replicas_end() -> None:
    fetch = {"name": names.FETCH_CONTAINER, "state": {"terminated": {"exitCode": 0}}}
    assert trim_pod(pod(status={"phase": "Running", "initContainerStatuses": [fetch]})).termination is None


@pytest.mark.parametrize(
    ("container", "state", "gave_up"),
    [
        (names.GATE_CONTAINER, {"terminated": {"exitCode": 3}}, True),
        (names.GATE_CONTAINER, {"terminated": {"exitCode": 1}}, False),
        (names.GATE_CONTAINER, {"terminated": {"exitCode": 0}}, False),
        (names.GATE_CONTAINER, {"terminated": {"exitCode": 143}}, False),
        (names.GATE_CONTAINER, {"running": {}}, False),
        ("fetch", {"terminated": {"exitCode": 1}}, False),
    ],
)
def test_who_gave_up_at_the_peer_gate(container: str, state: dict[str, Any], gave_up: bool) -> None:
    found = trim_pod(pod(status={"phase": "Failed", "initContainerStatuses": [{"name": container, "state": state}]}))
    assert found.waited_in_vain is gave_up


@pytest.mark.parametrize(
    ("code", "annotations", "in_vain"), [(164, TRAINS, True), (163, TRAINS, False), (164, {}, False)]
)
def test_which_trainer_waited_for_its_peers_in_vain(code: int, annotations: dict[str, str], in_vain: bool) -> None:
    """A program of the user's may mean something else by its code."""
    main = {"name": names.CONTAINER, "state": {"terminated": {"exitCode": code}}}
    seen = pod(metadata={"annotations": annotations}, status={"phase": "Failed", "containerStatuses": [main]})
    assert trim_pod(seen).waited_in_vain is in_vain


@pytest.mark.parametrize(
    "owner",
    [
        {**OWNER, "controller": False},
        {**OWNER, "kind": "ReplicaSet"},
        {**OWNER, "apiVersion": "kubeflow.org/v1"},
        {key: value for key, value in OWNER.items() if key != "controller"},
    ],
    ids=str,
)
def test_what_something_else_controls_is_not_ours(owner: dict[str, Any]) -> None:
    assert trim_pod(pod(metadata={"ownerReferences": [owner]})).owner_uid == ""
    assert trim_dependent(pod(metadata={"ownerReferences": [owner]})).owner_uid == ""


def test_another_version_of_our_api_controls_it_all_the_same() -> None:
    owner = {**OWNER, "apiVersion": "tfgpu.dev/v1"}
    assert trim_pod(pod(metadata={"ownerReferences": [owner]})).owner_uid == "job-uid"


@pytest.mark.parametrize(
    ("value", "token"),
    [("0af3", "0af3"), ("", ""), (None, ""), ("x\r\nX-More: y", ""), ("0" * 65, ""), ("0af3\n", "")],
)
def test_a_token_is_what_can_be_shown_in_a_header(value: str | None, token: str) -> None:
    env = [{"name": "TFGPU_PROGRESS_TOKEN", "value": value}]
    other, ours = {"name": "sidecar", "env": [{**env[0], "value": "ff"}]}, {"name": "tensorflow", "env": env}
    assert trim_pod(pod(spec={"containers": [other, ours]})).progress_token == token
    assert trim_pod(pod(spec={"containers": [other]})).progress_token == ""


def test_the_tokens_of_a_pod_are_read_once() -> None:
    env = [{"name": Variable.PROGRESS_TOKEN, "value": "ab"}, {"name": Variable.RECOVERY_TOKEN, "value": "cd"}]
    body = pod(spec={"containers": [{"name": names.CONTAINER, "env": env}]})
    held = trim_pod(body)
    found = trim_pod({**body, "spec": {}}, held)
    assert (found.progress_token, found.recovery_token) == ("ab", "cd")
    assert found == held


@pytest.mark.parametrize("label", ["", "x", "-1", "1.5", "²"])
def test_a_label_that_is_no_number_counts_as_none(label: str) -> None:
    assert trim_pod(pod(metadata={"labels": {names.LABEL_ATTEMPT: label}})).attempt == 0


def test_how_the_container_ended() -> None:
    state = ended(exitCode=137, signal=9, reason="OOMKilled", message="m", finishedAt="2026-01-01T00:00:00Z")
    found = trim_pod(pod(status=state)).termination
    assert found is not None
    assert (found.exit_code, found.signal, found.reason) == (137, 9, "OOMKilled")
    short = trim_pod(pod(status=ended(exitCode=0))).termination
    assert short is not None
    assert (short.exit_code, short.signal, short.reason, short.message, short.finished_at) == (0, None, "", "", "")


@pytest.mark.parametrize(
    ("phase", "state", "read"),
    [("Failed", {}, 137), ("Failed", {"waiting": {}}, 137), ("Failed", {"terminated": {"exitCode": 1}}, 1),
     ("Running", {"running": {}}, None), ("Pending", {"waiting": {}}, None)],
)  # fmt: skip
def test_how_a_container_ended_before_counts_if_its_pod_has_failed_since(phase: str, state: Any, read: int) -> None:
    lost = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
    container = {"name": names.CONTAINER, "state": state, "lastState": lost}
    found = trim_pod(pod(status={"phase": phase, "containerStatuses": [container]})).termination
    assert (found and found.exit_code) == read


WAITING = [
    ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no gpu"}]},
     ("Unschedulable", "no gpu")),
    ({"conditions": [{"type": "PodScheduled", "status": "False"}]}, ("Unschedulable", "")),
    ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, ("", "")),
    ({"containerStatuses": [{"name": "tensorflow", "state": {"waiting": {"reason": "ErrImagePull", "message": "m"}}}]},
     ("ErrImagePull", "m")),
    ({"message": "no AppArmor",
      "containerStatuses": [{"name": "tensorflow", "state": {"waiting": {"reason": "Blocked"}}}]},
     ("Blocked", "no AppArmor")),
    ({"initContainerStatuses": [{"name": "gate", "state": {"waiting": {"reason": "ErrImagePull"}}}],
      "containerStatuses": [{"name": "tensorflow", "state": {"waiting": {"reason": "PodInitializing"}}}]},
     ("ErrImagePull", "init container gate")),
    ({"containerStatuses": [{"name": "log", "state": {"waiting": {"reason": "ErrImagePull", "message": "m"}}}]},
     ("ErrImagePull", "container log: m")),
    ({"initContainerStatuses": [{"name": "proxy", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "m"}},
                                 "lastState": {"terminated": {"exitCode": 3, "message": "no key"}}}]},
     ("CrashLoopBackOff", "init container proxy: m: exit code 3: no key")),
    ({"initContainerStatuses": [{"name": "proxy", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                                 "lastState": {"terminated": {"exitCode": 3, "message": "two\nlines\n"}}}]},
     ("CrashLoopBackOff", "init container proxy: exit code 3: two lines")),
    ({"containerStatuses": [{"name": "tensorflow", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, ("", "")),
    ({"containerStatuses": [{"name": "tensorflow", "state": {"waiting": {}}}]}, ("", "")),
    ({"containerStatuses": [{"name": "tensorflow"}]}, ("", "")),
]  # fmt: skip


@pytest.mark.parametrize(("status", "waiting"), WAITING)
def test_what_keeps_it_from_running(status: dict[str, Any], waiting: tuple[str, str]) -> None:
    found = trim_pod(pod(status=status))
    assert (found.waiting_reason, found.waiting_message) == waiting


def test_an_evicted_pod_has_no_container_status_at_all() -> None:
    target = {"type": "DisruptionTarget", "status": "True"}
    found = trim_pod(pod(status={"phase": "Failed", "reason": "Evicted", "conditions": [target]}))
    assert (found.phase, found.status_reason, found.disruption) == ("Failed", "Evicted", "DisruptionTarget")


def test_the_condition_says_who_takes_the_pod_away() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    assert trim_pod(pod(status={"conditions": [target]})).disruption == "PreemptionByScheduler"
    assert trim_pod(pod(status={"conditions": [{**target, "status": "False"}]})).disruption == ""


@pytest.mark.parametrize(
    ("phase", "others", "lingers"),
    [
        ("Running", [{"running": {}}], True),
        ("Pending", [{"waiting": {"reason": "ImagePullBackOff"}}], True),
        ("Running", [{"terminated": {"exitCode": 0}}], False),
        ("Running", [], False),
        ("Succeeded", [{"terminated": {"exitCode": 0}}], False),
        ("Failed", [{"running": {}}], False),
    ],
)
def test_f2_a_pod_lingers_while_another_container_has_not_ended(phase: str, others: list[Any], lingers: bool) -> None:
    through = {"name": names.CONTAINER, "state": {"terminated": {"exitCode": 0}}}
    found = [{"name": f"c{i}", "state": state} for i, state in enumerate(others)]
    sidecar = [{"name": "proxy", "state": {"running": {}}}]
    status = {"phase": phase, "containerStatuses": [*found, through], "initContainerStatuses": sidecar}
    assert trim_pod(pod(status=status)).lingers is lingers
    runs = {"name": names.CONTAINER, "state": {"running": {}}}
    assert not trim_pod(pod(status={**status, "containerStatuses": [*found, runs]})).lingers


def test_f4_the_clusters_sentence_about_the_pod_is_kept() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for b"}
    assert trim_pod(pod(status={"message": "x" * 9999, "conditions": [target]})).status_message == "x" * 4096
    assert trim_pod(pod(status={"conditions": [target]})).status_message == "for b"
    assert trim_pod(pod(status={"conditions": [{**target, "status": "False"}]})).status_message == ""


def condition(kind: str, status: str, at: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "lastTransitionTime": at}


@pytest.mark.parametrize(
    ("phase", "conditions", "ended"),
    [
        ("Running", [condition("Ready", "True", "2026-01-01T00:00:20Z")], ""),
        ("Running", [condition("Ready", "False", "2026-01-01T00:02:00Z")], "2026-01-01T00:02:00Z"),
        ("Failed", [condition("Ready", "False", "2026-01-01T00:02:00Z")], "2026-01-01T00:02:00Z"),
        (
            "Failed",
            [
                condition("Ready", "False", "2026-01-01T00:02:00Z"),
                condition("DisruptionTarget", "True", "2026-01-01T00:02:01Z"),
            ],
            "2026-01-01T00:02:01Z",
        ),
        ("Failed", [condition("Ready", "False", "2026-01-01T00:00:10Z")], "2026-01-01T00:03:00Z"),
        ("Failed", [{"type": "DisruptionTarget", "status": "True"}], "2026-01-01T00:03:00Z"),
        ("Failed", [], "2026-01-01T00:03:00Z"),
    ],
    ids=["runs", "node silent", "failed", "evicted", "never ready", "without a time", "nothing but its last write"],
)
def test_when_a_pod_without_container_status_ended(phase: str, conditions: list[Any], ended: str) -> None:
    writes = [{"time": "2026-01-01T00:03:00Z"}, {"time": "2026-01-01T00:00:05Z"}, {}]
    status = {"phase": phase, "startTime": "2026-01-01T00:00:10Z", "conditions": conditions}
    assert trim_pod(pod(metadata={"managedFields": writes}, status=status)).ended_at == ended
    assert trim_pod(pod(status={"phase": "Failed"})).ended_at == ""


def test_a_job_without_what_nobody_decides_by() -> None:
    metadata = {"name": "train", "managedFields": [1], "annotations": {"a": "b"}}
    job = {"metadata": metadata, "spec": {"x": 1}}
    trimmed = trim_job(job)
    assert trimmed == {"metadata": {"name": "train"}, "spec": {"x": 1}}
    assert "managedFields" in metadata, "the original is left as it is"


def test_a_service() -> None:
    found = trim_dependent(pod(metadata={"uid": "u", "deletionTimestamp": "t", "ownerReferences": [OWNER]}))
    assert (found.uid, found.owner_uid, found.owner_job, found.deleting) == ("u", "job-uid", "train", True)


def test_texts_of_a_pods_status_are_kept_up_to_a_length() -> None:
    long = "x" * (1 << 20)
    state = {"terminated": {"exitCode": 1, "message": long, "reason": long}}
    status = {"phase": "Failed", "reason": long, "containerStatuses": [{"name": "tensorflow", "state": state}]}
    found = trim_pod(pod(status=status))
    assert found.termination is not None
    assert len(found.termination.message) == 4096
    assert {len(found.status_reason), len(found.termination.reason)} == {256}


def test_what_two_objects_say_alike_is_kept_once() -> None:
    """Of 1,000 jobs with 4,000 pods it is 4 MB."""
    text = json.dumps(make.job(worker=2) | {"status": {"conditions": [{"type": "Running", "reason": "AllReady"}]}})
    one, other = (trim_job(json.loads(text)) for _ in range(2))
    (mine,), (theirs,) = (job["status"]["conditions"] for job in (one, other))
    assert [key is same for key, same in zip(mine, theirs, strict=True)] == [True, True]
    assert (mine["reason"] is theirs["reason"], one["spec"]["strategy"] is other["spec"]["strategy"]) == (True, True)
    owned = json.dumps(pod(metadata={"ownerReferences": [OWNER]}, spec={"nodeName": "a-node"}))
    first, second = (trim_pod(json.loads(owned)) for _ in range(2))
    assert (first.owner_uid is second.owner_uid, first.node is second.node) == (True, True)


def known_job(spec: object = None, generation: int = 1, **status: Any) -> dict[str, Any]:
    metadata = {"name": "train", "namespace": "ns", "uid": "job-uid", "generation": generation}
    return {"metadata": metadata, "spec": {"strategy": "OneDevice", "x": spec}, "status": status}


def again(obj: dict[str, Any]) -> dict[str, Any]:
    """As a parser makes it: no object of it is the same."""
    made: dict[str, Any] = json.loads(json.dumps(obj))
    return made


def test_what_has_not_changed_is_taken_from_the_version_that_is_held() -> None:
    held = trim_job(known_job(phase="Running", conditions=[{"type": "Running"}], plan={"counts": {"worker": 2}}))
    new = again(known_job(phase="Running", conditions=[{"type": "Finished"}], plan={"counts": {"worker": 2}}))
    found = trim_job(new, held)
    assert found == trim_job(new)
    assert found["spec"] is held["spec"]
    assert found["status"]["plan"] is held["status"]["plan"]
    assert [next(iter(found["status"]["conditions"][0])) is next(iter(held["status"]["conditions"][0]))] == [True]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (known_job(1, generation=1), known_job(True, generation=2)),
        (known_job(1), {**known_job(True), "metadata": {**known_job()["metadata"], "uid": "another"}}),
        (known_job({"a": [0] * 30_000}, generation=1), known_job(1, generation=2)),
        (known_job(1, generation=1), known_job({"a": [0] * 30_000}, generation=2)),
        (known_job(1, phase="Running"), {key: value for key, value in known_job(1).items() if key != "status"}),
    ],
    ids=["edited into what Python takes for the same", "another job", "mended", "spoilt", "without a status"],
)
def test_what_has_changed_is_as_without_an_earlier_version(before: dict[str, Any], after: dict[str, Any]) -> None:
    found = trim_job(again(after), trim_job(again(before)))
    assert json.dumps(found, sort_keys=True) == json.dumps(trim_job(again(after)), sort_keys=True)


NO_ROOM = "cp: error writing '/tfgpu-code/./a': No space left on device"
NO_FOLDER = "cp: can't stat '/code/.': No such file or directory"


@pytest.mark.parametrize(
    ("container", "code", "said", "exit_code"),
    [
        (names.CODE_VOLUME, 1, NO_ROOM, 163),
        (names.MODELS_VOLUME, 1, "", 163),
        (names.CODE_VOLUME, 1, NO_FOLDER, 1),
        (names.CODE_VOLUME, 127, "", 127),
        (names.FETCH_CONTAINER, 1, NO_ROOM, 1),
    ],
)
def test_a_copy_that_failed_is_retryable_unless_the_image_has_no_such_folder(
    container: str, code: int, said: str, exit_code: int
) -> None:
    copy = {"name": container, "state": {"terminated": {"exitCode": code, "message": said, "finishedAt": T[1]}}}
    found = trim_pod(pod(status={"phase": "Failed", "initContainerStatuses": [copy]})).termination
    assert found is not None
    assert (found.exit_code, found.message, found.finished_at) == (exit_code, said, T[1])
