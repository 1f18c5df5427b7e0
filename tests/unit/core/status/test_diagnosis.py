"""What a failure means and what to do about it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.core import make
from tests.unit.core.simulator import World

from tfgpujob import names
from tfgpujob.api import JobStatus
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.core.status import diagnosis, limits
from tfgpujob.core.status.diagnosis import ACTIONS, Diagnosis, advice, diagnose, without_replica
from tfgpujob_contract.limits import Limit

TRAINER = Path(__file__).parents[4] / "trainer_image/src/tfgpujob_trainer"


def word(**record: Any) -> str:
    return json.dumps({"code": 1, "message": "it broke", **record})


@pytest.mark.parametrize(
    ("reason", "code", "said", "cause"),
    [
        ("Error", 1, "Traceback", "Exception"),
        ("Error", 7, "no", "Exception"),
        ("Error", 2, word(cause="BadConfig"), "BadConfig"),
        ("Error", 1, word(cause="LossNotFinite"), "LossNotFinite"),
        ("Error", 1, word(cause="DiskFull"), "DiskFull"),
        ("Error", 70, "", "OutOfMemory"),
        ("Error", 137, word(cause="OutOfMemory"), "OutOfMemory"),
        ("OOMKilled", 137, "", "HostOutOfMemory"),
        ("OOMKilled", 1, word(cause="PeerFailure"), "HostOutOfMemory"),
        ("Error", 71, "", "Fenced"),
        ("Error", 72, "", "LimitReached"),
        ("Error", 162, word(cause="LimitReached"), "LimitReached"),
        ("Error", 163, word(cause="NotFetched"), "NotFetched"),
        ("Error", 163, "", "NotFetched"),
        ("Error", 143, word(cause="Stopped"), "Stopped"),
        ("Error", 160, "", "PeerFailure"),
        ("Error", 161, "", "Hang"),
        ("Error", 161, word(cause="StartupDeadline"), "Hang"),
        ("Error", 139, "", "Crash"),
        ("Error", 134, "", "Crash"),
        ("Evicted", None, "", "Evicted"),
        ("Evicted", 137, word(cause="Stopped"), "Evicted"),
        ("Preempting", None, "", "Preempted"),
        ("EvictionByEvictionAPI", 143, word(cause="Stopped"), "Drained"),
        ("PreemptionByScheduler", 143, word(cause="Stopped"), "Preempted"),
        ("DeletionByTaintManager", 143, word(cause="Stopped"), "Tainted"),
        ("TerminationByKubelet", 137, "", "Evicted"),
        ("DeletionByPodGC", None, "", "NodeLost"),
        ("NodeLost", None, "", "NodeLost"),
        ("UnexpectedAdmissionError", None, "", "NodeRefused"),
        ("DeviceUnhealthy", 1, "", "DeviceUnhealthy"),
        ("Vanished", None, "", "Deleted"),
        ("", None, "", "Unknown"),
    ],
)
def test_the_most_specific_source_names_the_cause(reason: str, code: int | None, said: str, cause: str) -> None:
    found = diagnose(reason, code, said, 20)
    assert found.cause == cause
    assert found.action == ACTIONS[Diagnosis(cause)]


EMPTY_DIR = 'Usage of EmptyDir volume "scratch" exceeds the limit "10Mi". '


@pytest.mark.parametrize(
    ("reason", "code", "sentence", "cause", "action"),
    [
        ("Error", 137, "", "Killed", "Killed by SIGKILL: "),
        ("Error", 143, "", "Killed", "Killed by SIGTERM: "),
        ("Error", 130, "", "Killed", "Killed by SIGINT: "),
        ("Error", 255, "", "Unknown", "Unknown; Kubernetes says: exit code 255. The program chose this code"),
        ("Odd", None, "It rained.", "Unknown", "Unknown; Kubernetes says: Odd: It rained."),
        ("PostStartHookError", 137, "", "Unknown", "Unknown; Kubernetes says: PostStartHookError: exit code 137"),
        ("Odd", 1, "It rained.", "Unknown", "Unknown; Kubernetes says: Odd: It rained.: exit code 1"),
        ("Odd", 0, "It rained.", "Unknown", "Unknown; Kubernetes says: Odd: It rained.: exit code 0"),
        ("Evicted", None, EMPTY_DIR, "Evicted", "Raise the limit that the message names (sizeLimit"),
        ("Evicted", None, "Container a exceeded its local ephemeral storage limit", "Evicted", "Raise the limit that"),
        ("Evicted", None, "The node was low on resource: memory.", "Evicted", "Set requests and limits"),
        ("OutOfcpu", None, "Pod was rejected: not enough: cpu", "NodeRefused", "Nothing: it is scheduled again"),
        ("OutOfmemory", None, "Pod Node didn't have enough: memory", "NodeRefused", "Nothing: it is scheduled again"),
        ("NodeAffinity", None, "Pod was rejected: no match", "NodeRefused", "Nothing: it is scheduled again"),
        ("UnexpectedAdmissionError", None, "Allocate failed", "NodeRefused", "Nothing: it is scheduled again"),
        ("SysctlForbidden", None, "Pod was rejected: sysctl", "NodeRefused", "Nothing: it is scheduled again"),
        (
            "DeadlineExceeded",
            137,
            "Pod was active too long",
            "Deadline",
            "Raise or remove activeDeadlineSeconds in the",
        ),
    ],
)
def test_f4_kubernetes_own_sentence_is_quoted_and_nothing_is_guessed(
    reason: str, code: int | None, sentence: str, cause: str, action: str
) -> None:
    found = diagnose(reason, code, "last line", 20, sentence)
    assert found.cause == cause
    assert found.action.startswith(action)
    assert found.message == f"{sentence.strip()}\nlast line".lstrip()
    assert "memory" not in found.action.replace("requests and limits for memory", "")


def test_f4_a_sentence_is_bounded_and_leaves_room_for_the_last_lines() -> None:
    found = diagnose("Odd", None, "x" * 9999 + "end", 20, "y" * 9999)
    assert len(found.message) == 4096
    assert found.message.startswith("y" * 1000)
    assert found.message.endswith("end")
    assert len(found.action) == 500


@pytest.mark.parametrize(
    ("reason", "sentence", "restarts", "disruptions"),
    [
        ("Evicted", EMPTY_DIR, 1, 0),
        ("Evicted", "The node was low on resource: memory.", 0, 1),
        ("OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu", 0, 1),
        ("UnexpectedAdmissionError", "Pod was rejected: Allocate failed", 0, 1),
        ("NodeShutdown", "Pod was rejected as the node is shutting down.", 0, 1),
        ("NodePorts", "Predicate NodePorts failed", 0, 1),
        ("TaintToleration", "Predicate TaintToleration failed", 0, 1),
        ("TopologyAffinityError", "Resources cannot be allocated with Topology locality", 0, 1),
        ("SysctlForbidden", "Pod was rejected: forbidden sysctl", 1, 0),
        ("AppArmor", "Pod was rejected: Cannot enforce AppArmor", 1, 0),
        ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", 1, 0),
    ],
)
def test_f4_what_a_pod_does_itself_is_counted_and_what_the_node_lacks_is_not(
    reason: str, sentence: str, restarts: int, disruptions: int
) -> None:
    world = World.running(make.job(worker=2))
    world.fails("train-worker-1", reason, sentence)
    assert (world.status.get("restarts", 0), world.status.get("disruptions", 0)) == (restarts, disruptions)
    assert world.status["lastFailure"]["message"] == sentence.strip()
    assert world.message("Restarting").startswith(f"train-worker-1 ended ({reason}: {sentence.strip()})")


RUNC = "failed to create containerd task: OCI runtime create failed: runc create failed: unable to start container: "


@pytest.mark.parametrize(
    ("reason", "code", "said", "command"),
    [
        ("StartError", 128, RUNC + 'exec: "pyhton": executable file not found in $PATH: unknown', "pyhton"),
        ("StartError", 128, RUNC + 'exec: "/a b": stat /a b: no such file or directory: unknown', "/a b"),
        ("ContainerCannotRun", 126, RUNC + 'exec: "/app": permission denied: unknown', "/app"),
        ("ContainerCannotRun", 127, "", "of the container"),
        ("Error", 255, "exec /usr/bin/python: exec format error", "/usr/bin/python"),
        ("Error", 1, "exec /run.sh: no such file or directory", "/run.sh"),
        ("Error", 127, "sh: 1: pyhton: not found", ""),
        ("Error", 1, 'a program\'s own: exec: "x"', ""),
        ("StartError", 128, RUNC + "error mounting /a: no such file or directory", ""),
    ],
)
def test_f8_a_command_that_is_not_in_the_image_is_named_with_field_and_fix(
    reason: str, code: int, said: str, command: str
) -> None:
    field = diagnosis.field_of("worker", names.CONTAINER, is_init=False)
    assert field == "spec.replicaSpecs.worker.template.spec.containers[tensorflow].command"
    found = diagnose(reason, code, said, 20, where=field)
    assert (found.cause is Diagnosis.COMMAND) == bool(command)
    if command:
        assert found.action == (
            f"The command {command} is not in the image or can't run there: correct {field}, or the image."
        )
    assert found.message == said


@pytest.mark.parametrize(
    ("reason", "code", "said"),
    [("StartError", 128, f"{RUNC}error mounting /a"), ("ContainerStatusUnknown", 137, "It could not be located")],
)
def test_f8_the_condition_quotes_the_runtimes_sentence_and_never_a_programs(reason: str, code: int, said: str) -> None:
    for known, told in ((reason, f" ({reason}: {said}); all"), ("Error", " (Error); all")):
        world = World.begun(make.job(worker=2))
        world.exits("train-worker-1", code, said, known)
        assert f"ended with exit code {code}{told}" in world.message("Restarting")


def test_f4_of_a_refusal_of_several_lines_none_is_lost() -> None:
    said = 'admission webhook "a" denied the request:\n\nrequire-labels:\n  team: validation error'
    world = World(make.job(worker=1))
    world.refuse = lambda create: (403, said) if create.kind is Kind.POD else None
    world.settle()
    failure = world.status["lastFailure"]
    assert said in failure["message"]
    assert failure["action"].startswith("Correct what the message names")


def test_a_program_that_ends_in_silence_has_no_message_to_read() -> None:
    assert diagnose("Error", 1, "\n", 20).action.startswith("It left no message")


def test_f8_what_else_keeps_a_container_from_starting_is_the_runtimes_sentence() -> None:
    found = diagnose("StartError", 128, RUNC + "error mounting /a", 20)
    assert (found.cause, found.message) == ("Unknown", f"{RUNC}error mounting /a")
    assert found.action.startswith("Kubernetes says why in the message: correct the template")
    assert diagnose("ContainerStatusUnknown", 137, "The container could not be located", 20).cause == "Unknown"


@pytest.mark.parametrize(
    ("container", "is_init", "field"),
    [
        ("prepare", True, "spec.replicaSpecs.ps.template.spec.initContainers[prepare].command"),
        ("log", False, "spec.replicaSpecs.ps.template.spec.containers[log].command"),
        (names.CODE_VOLUME, True, "spec.trainer.code.image"),
    ],
)
def test_f8_the_field_that_says_what_a_container_runs(container: str, is_init: bool, field: str) -> None:
    assert diagnosis.field_of("ps", container, is_init=is_init) == field


@pytest.mark.parametrize(
    ("code", "reason", "said", "phase"),
    [
        (128, "StartError", 'exec: "pyhton": executable file not found in $PATH', "Failed"),
        (127, "ContainerCannotRun", "", "Failed"),
        (128, "StartError", "error mounting /a", "Restarting"),
        (1, "ContainerCannotRun", "device busy", "Restarting"),
        (137, "ContainerStatusUnknown", "The container could not be located", "Restarting"),
    ],
)
def test_f8_the_exit_code_of_a_runtime_is_not_the_programs(code: int, reason: str, said: str, phase: str) -> None:
    world = World.begun(make.job(worker=2))
    world.ready("train-worker-0")
    world.exits("train-worker-1", code, said, reason)
    assert world.phase == phase


ENDS = [
    ("threads", 1, "RuntimeError: can't start new thread"),
    ("threads", 134, "what():  Resource temporarily unavailable\n" + "  @ 0x7f stack\n" * 30),
    ("descriptors", 1, "OSError: [Errno 24] Too many open files: '/dev/null'"),
    ("shared memory", 135, "bash: line 1: 12 Bus error  (core dumped) python train.py"),
    ("shared memory", 1, "Error while creating shared memory segment /dev/shm/nccl-Xb (size 9637888)"),
    ("locked memory", 1, "Call to ibv_reg_mr failed with error Cannot allocate memory"),
    ("file size", 1, "OSError: [Errno 27] File too large"),
    ("inotify", 1, "OSError: [Errno 28] inotify watch limit reached"),
]


@pytest.mark.parametrize(("limit", "code", "log"), ENDS)
def test_the_last_lines_of_any_program_name_the_limit_that_ended_it(limit: str, code: int, log: str) -> None:
    found = diagnose("Error", code, f"epoch 1\n{log}", 20)
    assert (found.cause, found.action) == ("LimitReached", limits.ACTIONS[Limit(limit)])
    assert found.message.startswith("epoch 1") or len(log) > 100


@pytest.mark.parametrize(
    ("reason", "code", "said", "cause"),
    [
        ("Evicted", 137, "Too many open files", "Evicted"),
        ("OOMKilled", 137, "can't start new thread", "HostOutOfMemory"),
        ("Error", 160, "Too many open files", "PeerFailure"),
        ("Error", 1, "Too many open files\n" + "x\n" * 60, "Exception"),
        ("Error", 1, word(cause="BadConfig", lastLines=["Too many open files"]), "BadConfig"),
    ],
)
def test_a_word_about_a_limit_is_not_the_cause_where_another_is_known(
    reason: str, code: int, said: str, cause: str
) -> None:
    assert diagnose(reason, code, said, 20).cause == cause


def test_a_bus_error_asks_to_look_at_shared_memory() -> None:
    found = diagnose("Error", 135, "", 20)
    assert found.cause == "Crash"
    assert "Look whether /dev/shm is full" in found.action


FIT = """Traceback (most recent call last):
  File "/app/train.py", line 22, in <module>
    model.fit(dataset, epochs=1, steps_per_epoch=3, verbose=0)
  File "/usr/lib/python3.11/site-packages/keras/src/utils/traceback_utils.py", line 122, in error_handler
    raise e.with_traceback(filtered_tb) from None
"""
PER_REPLICA = (
    FIT
    + """  File "/usr/lib/python3.11/site-packages/tensorflow/python/framework/constant_op.py", line 108, in convert
    return ops.EagerTensor(value, ctx.device_name, dtype)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: Attempt to convert a value (PerReplica:{
  0: <tf.Tensor: shape=(4, 4), dtype=float32, numpy=
array([[1., 1., 1., 1.],
       [1., 1., 1., 1.]], dtype=float32)>
}) with an unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.
"""
)
KERAS_ERRORS = {
    "fit under MultiWorkerMirrored": (PER_REPLICA, "name it in spec.trainer.entrypoint"),
    "the end of it": (PER_REPLICA[-120:], "name it in spec.trainer.entrypoint"),
    "a GAN under MultiWorkerMirrored": (
        FIT + '  File "/usr/lib/python3.11/site-packages/optree/ops.py", line 798, in tree_map\n'
        "ValueError: Invalid reduction dimension 0 for input with 0 dimensions. for '{{node Sum}} = Sum[T=DT_FLOAT]",
        "name it in spec.trainer.entrypoint",
    ),
    "fit under ParameterServer": (
        FIT + "ValueError: To use this dataset, you need to pass this dataset to "
        "ClusterCoordinator.create_per_worker_dataset.",
        "Let the bundled trainer run the script as it is",
    ),
    "reset_states": (
        "AttributeError: 'SparseCategoricalAccuracy' object has no attribute 'reset_states'",
        "for Keras 2",
    ),
    "legacy optimizers": (
        "ImportError: `keras.optimizers.legacy` is not supported in Keras 3. When using",
        "for Keras 2",
    ),
    "an optimizer's lr": ("ValueError: Argument(s) not recognized: {'lr': 0.01}", "for Keras 2"),
    "a moved module": ("ModuleNotFoundError: No module named 'keras.layers.core'", "for Keras 2"),
    "a checkpoint's name": (
        "ValueError: The filepath provided must end in `.keras` (Keras model format). Received: filepath=ckpt",
        "for Keras 2",
    ),
}
"""The tracebacks are what Keras 3.15 printed, with shorter values."""


@pytest.mark.parametrize("name", KERAS_ERRORS)
def test_the_errors_of_keras_3_that_programs_for_keras_2_end_with_say_what_to_do(name: str) -> None:
    said, way_out = KERAS_ERRORS[name]
    found = diagnose("Error", 1, f"epoch 1\n{said}", 20)
    assert found.cause == "Exception"
    assert way_out in found.action
    assert found.action.endswith("install tf-keras in the image and set TF_USE_LEGACY_KERAS=1.")
    assert len(found.action) <= 500


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "ValueError: Attempt to convert a value (None) with an unsupported type (<class 'NoneType'>) to a Tensor."),
        (1, PER_REPLICA + "x\n" * 60),
        (137, PER_REPLICA),
        (1, word(cause="Exception", lastLines=PER_REPLICA.splitlines())),
    ],
)
def test_other_errors_are_not_keras_3s(code: int, said: str) -> None:
    assert "Keras" not in diagnose("Error", code, said, 20).action


def test_every_limit_has_one_sentence_to_act_on() -> None:
    assert set(limits.ACTIONS) == set(Limit)
    for action in limits.ACTIONS.values():
        assert action.endswith(".")
        assert ". " not in action
        assert len(action) <= 500


def test_every_cause_has_one_sentence_to_act_on() -> None:
    assert set(ACTIONS) == set(Diagnosis)
    for action in ACTIONS.values():
        assert action.endswith(".")
        assert ". " not in action


def test_every_word_of_the_trainer_is_known() -> None:
    said = {w for f in TRAINER.rglob("*.py") for w in re.findall(r'\bcause\s*=\s*"(\w+)"', f.read_text())}
    assert {"Exception", "OutOfMemory"} <= said
    assert said - {"Completed", "Failed"} <= set(diagnosis._BY_TRAINER)


def test_the_trainer_knows_the_fix_best_unless_the_cluster_took_the_pod() -> None:
    said = word(cause="OutOfMemory", fix="use smaller images")
    assert diagnose("Error", 70, said, 20).action == "use smaller images"
    assert diagnose("Evicted", 70, said, 20).action == ACTIONS[Diagnosis.EVICTED]
    assert len(diagnose("Error", 70, word(fix="x" * 9999), 20).action) == 500


@pytest.mark.parametrize(("lines", "message"), [(2, "b\nc"), (20, "a\nb\nc"), (0, "")])
def test_as_many_log_lines_as_are_asked_for(lines: int, message: str) -> None:
    assert diagnose("Error", 1, "a\nb\nc\n", lines).message == message


@pytest.mark.parametrize(("lines", "message"), [(2, "it broke\nb\nc"), (0, "it broke")])
def test_the_trainers_line_comes_first(lines: int, message: str) -> None:
    assert diagnose("Error", 1, word(lastLines=["a", "b", "c"]), lines).message == message


@pytest.mark.parametrize("said", ["ü" * 4000, word(message="ü" * 999, lastLines=["ü" * 3000, "end"])])
def test_the_message_keeps_the_end_in_at_most_4096_bytes(said: str) -> None:
    message = diagnose("Error", 1, said, 100).message
    assert len(message.encode()) <= 4096
    assert message.endswith(("ü", "end"))


@pytest.mark.parametrize(
    "said", ['{"cause": 3, "message": 4}', "{", "[]", '{"message": "m", "lastLines": 3}', '{"cause": ["x"]}', "{}"]
)
def test_whatever_a_container_says_is_only_text(said: str) -> None:
    found = diagnose("Error", 1, said, 20)
    assert found.cause is Diagnosis.EXCEPTION
    JobStatus.model_validate({"lastFailure": found.to_status()})


def test_it_stands_in_the_status_cut_as_the_job_asks() -> None:
    world = World.running(make.job(worker=2, run={"failureLogLines": 1}))
    world.exits("train-worker-1", 1, message="first\nValueError: no such column")
    failure = world.status["lastFailure"]
    assert failure["cause"] == "Exception"
    assert failure["message"] == "ValueError: no such column"
    assert failure["action"].startswith("Read the message")


def test_a_peers_failure_is_not_blamed_for_the_memory_that_ran_out() -> None:
    world = World.running(make.job(worker=3))
    world.exits("train-worker-0", 160)
    world.exits("train-worker-2", 137, reason="OOMKilled")
    failure = world.status["lastFailure"]
    assert (failure["index"], failure["cause"]) == (2, "HostOutOfMemory")


def test_a_job_that_ran_too_long_says_so_without_blaming_a_replica() -> None:
    world = World.running(make.job(worker=2, run={"activeDeadlineSeconds": 60}))
    world.advance(seconds=61)
    failure = world.status["lastFailure"]
    assert (failure["cause"], failure["reason"]) == ("Deadline", "DeadlineExceeded")
    assert "activeDeadlineSeconds allows: 60 s" in failure["message"]
    assert "role" not in failure


def test_a_start_that_may_not_be_tried_again_says_what_stopped_it() -> None:
    world = World(make.job(worker=2, run={"startPolicy": "Fail"}))
    world.refuse = lambda create: (403, "exceeded quota: q") if create.kind is Kind.POD else None
    world.settle()
    assert world.condition("Failed") == "True/QuotaExceeded"
    assert world.status["lastFailure"]["cause"] == "Quota"


@pytest.mark.parametrize("run", [{"startPolicy": "Fail", "startDeadlineSeconds": 60}, {"startDeadlineSeconds": 60},
    {"activeDeadlineSeconds": 60}])  # fmt: skip
@pytest.mark.parametrize(
    ("reason", "message", "cause", "action"),
    [
        ("ImagePullBackOff", "Back-off pulling image", "Image", "Check the image's name"),
        ("Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.", "Unschedulable", "Ask for less"),
        ("CreateContainerConfigError", 'secret "a" not found', "Refused", "Create in the job's namespace"),
        ("CrashLoopBackOff", "back-off 5m0s: exit code 3", "Unknown", ""),
    ],
)
def test_f7_a_deadline_of_a_job_whose_pods_never_ran_is_blamed_on_what_the_pods_say(
    run: dict[str, Any], reason: str, message: str, cause: str, action: str
) -> None:
    world = World.begun(make.job(worker=2, run=run))
    world.ready("train-worker-0")
    world.waits("train-worker-1", reason, message)
    world.advance(seconds=61)
    failure = world.status["lastFailure"]
    assert (failure["cause"], "role" in failure) == (cause, False)
    assert failure["action"].startswith(action)
    assert f"train-worker-1: {reason}: {message}" in failure["message"]
    assert failure["reason"].endswith("DeadlineExceeded")


def test_f7_a_start_that_is_too_slow_without_a_word_of_its_pods_is_a_deadline() -> None:
    world = World.begun(make.job(worker=2, run={"startPolicy": "Fail", "startDeadlineSeconds": 60}))
    world.advance(seconds=61)
    failure = world.status["lastFailure"]
    assert failure["cause"] == "Deadline"
    assert "startDeadlineSeconds" in failure["action"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("ImagePullBackOff", "imagePullSecrets"),
        ("ErrImageNeverPull", "Bring the image to the node"),
        ("CreateContainerError", "container runtime looked at"),
        ("Unschedulable", "Ask for less"),
        ("Whatever", ""),
    ],
)
def test_who_waits_hears_what_to_do(reason: str, words: str) -> None:
    assert words in advice(reason)
    world = World.begun(make.job(worker=2))
    world.waits("train-worker-0", reason, "0/3 nodes are available.")
    assert words in world.message("Running")


def test_a_container_that_can_not_start_beside_one_that_is_ready_is_named() -> None:
    world = World.running(make.job("OneDevice"))
    pulls = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    pod = world.pod("train-worker-0")
    others = [*pod["status"]["containerStatuses"], {"name": "sync", "state": pulls}]
    pod["status"] = {**pod["status"], "containerStatuses": others}
    world.settle()
    world.advance(minutes=1)
    assert world.condition("Running") == "True/AllReady"
    said = "The one required replica is ready. train-worker-0: ErrImagePull: container sync: no such image. Check"
    assert world.message("Running").startswith(said)


@pytest.mark.parametrize(
    "said",
    [
        "{" + '"a":[' * 2000,
        word(message="\ud800"),
        word(fix="\ud800"),
        word(lastLines=["\ud800"]),
        "\ud800",
    ],
)
def test_whatever_a_container_says_the_failure_is_recorded(said: str) -> None:
    """The termination message is a stranger's text, and a job that can't be reconciled hangs for ever."""
    world = World.running(make.job(worker=1))
    world.exits("train-worker-0", 1, message=said)
    assert world.phase == "Failed"
    json.dumps(world.status, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            '0/3 nodes are there: persistentvolumeclaim "data" not found.',
            "Create the PersistentVolumeClaim data in",
        ),
        ("pod has unbound immediate PersistentVolumeClaims", "kubectl describe pvc"),
        ("0/2 nodes are available: 2 node(s) had volume node affinity conflict.", "kubectl describe pvc"),
        ('0/2 nodes are available: persistentvolumeclaim "data" is being deleted.', "kubectl describe pvc"),
        ("0/3 nodes are available: 3 cannot allocate all claims.", "kubectl get resourceslices"),
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "Ask for less"),
    ],
)
def test_more_nodes_are_no_help_against_a_claim_that_is_missing(message: str, words: str) -> None:
    assert words in advice("Unschedulable", message)
    assert words in diagnose("Unschedulable", None, message, 1).action
    assert words in without_replica("ScheduleTimeoutExceeded", message)["action"]


@pytest.mark.parametrize(
    "said", ["cp: cannot stat '/models/.': No such file or directory", "cp: can't stat '/models/.': x"]
)
def test_an_image_without_the_folder_is_named(said: str) -> None:
    found = diagnose("Error", 1, said, 5)
    assert (found.cause, found.message) == (Diagnosis.BAD_CONFIG, said)
    assert found.action == "Name an image in spec.trainer.models.image that has the folder /models."


def test_of_a_copy_that_failed_the_network_is_not_blamed() -> None:
    found = diagnose("Error", 163, "cp: error writing '/code/./a': No space left on device", 5)
    assert (found.cause, "ephemeral-storage" in found.action) == (Diagnosis.NOT_FETCHED, True)


@pytest.mark.parametrize(
    "word", ["mlock", "ibv_reg_mr", "fork: ", "os.fork(", "inotify", "/dev/shm", "keras/src/", "{"]
)
def test_what_a_message_repeats_costs_no_time(word: str) -> None:
    """N1: 819 times `mlock` held the operator for 3.4 s, again at each look."""
    said = (word * 4096)[:4096]
    began = time.thread_time()
    for code in (1, 200, 135, None):
        diagnosis.diagnose("Error", code, said, 20)
    assert time.thread_time() - began < 0.05
