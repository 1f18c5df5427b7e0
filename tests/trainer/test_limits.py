"""Limits of the machine that really end a real training process: each is named, with what used it and the fix."""

from __future__ import annotations

import errno
import math
import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from tests.trainer.cgroups import cgroup, memory_cgroup
from tests.trainer.harness import Launcher, Task, launcher, until

from tfgpujob_contract.limits import Limit, recognise
from tfgpujob_trainer.contract.exits import classify, limit_reached
from tfgpujob_trainer.machine import limits, usage
from tfgpujob_trainer.machine.limits import recognise_lines
from tfgpujob_trainer.machine.usage import Bound, Usage

ANOTHER_USER = 54_321
NO_ROOM = "unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)), "sh", "-c"
SMALL_SHM = (*NO_ROOM, 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"', "sh")


@pytest.fixture
def launch() -> Iterator[Launcher]:
    """A launcher in a directory that every user may write."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o777)
    with launcher(directory, fresh=True) as started:
        yield started
    shutil.rmtree(directory)


def start(launch: Launcher, use: str, *, when: str = "training", prefix: tuple[str, ...] = ()) -> Task:
    """Start a small job that uses up something."""
    config = {"entrypoint": "limits_module", "globalBatchSize": 32, "epochs": 2, "logEverySeconds": 1}
    return launch.start(
        {**config, "output": {"directory": str(launch.directory / "out")}},
        env={
            "TEST_USE": use,
            "TEST_WHEN": when,
            "TEST_DIRECTORY": str(launch.directory),
            "KERAS_HOME": str(launch.directory / "keras"),
        },
        prefix=prefix,
    )


def limit(task: Task, which: int, value: int) -> None:
    """Before it has begun: what it starts inherits it."""
    resource.prlimit(task.process.pid, which, (value, value))


def can_mount() -> bool:
    """Whether a process may have a /dev/shm of its own."""
    return shutil.which("unshare") is not None and not subprocess.run([*SMALL_SHM, "true"], check=False).returncode


def ended(task: Task, code: int, cause: str = "LimitReached") -> str:
    """The line of its end."""
    assert task.wait() == code, task.log
    record = task.ended
    assert (record["code"], record["cause"]) == (code, cause), task.log
    return f"{record['message']} ({record['fix']})"


def assert_says(line: str, *words: str) -> None:
    for word in words:
        assert re.search(word, line), line


def test_threads_of_python_that_the_cgroup_refuses(launch):
    with cgroup("pids", "pids.max", 150) as group:
        task = start(launch, "threads")
        (group / "cgroup.procs").write_text(str(task.process.pid))
        line = ended(task, 162)
        assert_says(
            line, r"^out of threads: pids\.max of the cgroup \S+ is 150, 1\d\d are in use, 1\d\d of them threads"
        )
        assert_says(line, r"can't start new thread, at limits_module\.py:\d+", "podPidsLimit", "parallelReads")


@pytest.mark.deep
def test_threads_of_tensorflow_that_the_cgroup_refuses_after_a_warning(launch):
    with cgroup("pids", "pids.max", 150) as group:
        task = start(launch, "threads_of_tensorflow")
        (group / "cgroup.procs").write_text(str(task.process.pid))
        task.wait_for("tfgpu-train: warning: nearly out of threads: pids.max of the cgroup")
        (launch.directory / "seen").touch()
        line = ended(task, 162)
        assert_says(line, r"is 150, 1\d\d are in use, 1\d\d of them threads of the training process \(\d+ python")
        assert_says(line, r"creation via pthread_create\(\) failed", r"figures of \d+\.\d s before the end")
        assert task.log.count("nearly out of threads") == 1


@pytest.mark.deep
def test_a_pids_limit_that_is_too_small_to_start_is_not_tried_again(launch):
    with cgroup("pids", "pids.max", 30) as group:
        task = start(launch, "threads", when="import")
        (group / "cgroup.procs").write_text(str(task.process.pid))
        assert_says(ended(task, 72), "pids.max of the cgroup", "is 30, ")


@pytest.mark.deep
def test_a_supervisor_that_can_start_nothing_says_why(launch):
    with cgroup("pids", "pids.max", 1) as group:
        task = start(launch, "threads")
        (group / "cgroup.procs").write_text(str(task.process.pid))
        assert_says(
            ended(task, 72), r"pids\.max of the cgroup", "is 1, 1 are in use", "can't start new thread|BlockingIOError"
        )


@pytest.mark.deep
def test_threads_that_the_users_own_limit_refuses(launch):
    """RLIMIT_NPROC does not bind root. It counts what all processes of the user have, so it is worth another try."""
    if os.geteuid() == 0:
        user, rights = str(ANOTHER_USER), "+dac_override"  # to read what belongs to root
        who = ("--reuid", user, "--regid", user, "--clear-groups", "--inh-caps", rights, "--ambient-caps", rights)
        # From outside it could be set only as long as the process is still root's.
        task = start(launch, "threads", prefix=("prlimit", "--nproc=150", "setpriv", *who))
    else:
        task = start(launch, "threads")
        limit(task, resource.RLIMIT_NPROC, usage.threads_of_user(os.getuid()) + 150)
    assert_says(ended(task, 162), r"RLIMIT_NPROC \(ulimit -u\), of all processes of this user, is", "LimitNPROC")


@pytest.mark.deep
def test_a_limit_of_the_pod_that_cannot_be_seen_is_named_by_what_is_left(launch):
    """The kubelet sets pids.max above the container, which sees only its own."""
    with cgroup("pids", "pids.max", 150) as pod:
        container = pod / "container"
        container.mkdir()
        inner = "unshare --cgroup --mount sh -c 'umount -l /sys/fs/cgroup && mount -t tmpfs t /sys/fs/cgroup"
        version = "mkdir /sys/fs/cgroup/pids && mount -t cgroup -o pids c /sys/fs/cgroup/pids"
        if not (usage.CGROUPS / "pids").is_dir():
            version = "mount -t cgroup2 c /sys/fs/cgroup"
        join = f'echo $$ > {container}/cgroup.procs; exec {inner} && {version} && exec "$@"\' sh "$@"'
        task = start(launch, "threads", prefix=("sh", "-c", join, "sh"))
        line = ended(task, 162)
        assert_says(line, r"the training process had 1\d\d", "no limit that can be seen from inside", "podPidsLimit")
        until(lambda: not (container / "cgroup.procs").read_text(), 20)
        container.rmdir()


@pytest.mark.deep
def test_threads_for_whose_stacks_there_is_no_room(launch):
    assert_says(ended(start(launch, "stacks"), 162), r"out of room for threads: RLIMIT_AS \(ulimit -v\) is \d")


def test_descriptors_of_python(launch):
    task = start(launch, "descriptors")
    limit(task, resource.RLIMIT_NOFILE, 200)
    line = ended(task, 162)
    assert_says(line, r"out of file descriptors: RLIMIT_NOFILE \(ulimit -n\) is 200, the training process holds \d+ \(")
    assert_says(line, r"\d+ /dev/null", "LimitNOFILE", r"OSError: \[Errno 24\]")
    assert "Traceback (most recent call last)" in task.log


@pytest.mark.deep
def test_descriptors_of_tensorflow_are_not_called_memory(launch):
    task = start(launch, "descriptors_of_tensorflow")
    limit(task, resource.RLIMIT_NOFILE, 200)
    assert_says(ended(task, 162), "RLIMIT_NOFILE", "ResourceExhaustedError: .*Too many open files", "holds 200")


@pytest.mark.deep
def test_a_server_that_finds_no_descriptor_does_not_blame_the_port(launch):
    config = {"entrypoint": "limits_module", "globalBatchSize": 32, "epochs": 2}
    env = {"TEST_USE": "server", "TEST_WHEN": "import", "TEST_DIRECTORY": str(launch.directory)}
    config["output"] = {"directory": str(launch.directory / "out")}
    (task,) = launch.start_workers(config, env={0: env}, started=[0])
    limit(task, resource.RLIMIT_NOFILE, 200)
    assert_says(ended(task, 72), "RLIMIT_NOFILE", "Too many open files")


@pytest.mark.skipif(not can_mount(), reason="no mount namespace may be made here")
@pytest.mark.parametrize(
    ("use", "words"),
    [
        ("shared", "ended by SIGBUS"),
        ("shared_without_a_name", r"OSError: \[Errno 28\] No space left on device"),
        ("shared_by_tensorflow", "/dev/shm/cache.*No space left on device"),
    ],
)
@pytest.mark.deep
def test_shared_memory_that_is_full(launch, use, words):
    line = ended(start(launch, use, prefix=SMALL_SHM), 162)
    assert_says(line, "out of shared memory: /dev/shm is 16 MiB, ", words, "emptyDir with medium: Memory")


@pytest.mark.skipif(not can_mount(), reason="no mount namespace may be made here")
@pytest.mark.deep
def test_a_disk_without_a_name_that_is_full_may_be_shared_memory(launch):
    line = ended(start(launch, "shared_that_gives_back", prefix=SMALL_SHM), 1, "DiskFull")
    assert_says(line, "No space left on device", "if it was /dev/shm, which is 16 MiB, mount a larger")


@pytest.mark.deep
def test_memory_that_may_not_be_locked(launch):
    bound = ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock") if os.geteuid() == 0 else ()
    task = start(launch, "locked", prefix=bound)
    limit(task, resource.RLIMIT_MEMLOCK, 1 << 16)
    assert_says(ended(task, 162), r"RLIMIT_MEMLOCK \(ulimit -l\) is 64 KiB", "IPC_LOCK")


@pytest.mark.deep
def test_a_file_that_becomes_too_large_fails_the_job(launch):
    task = start(launch, "file")
    limit(task, resource.RLIMIT_FSIZE, 16 << 20)
    assert_says(ended(task, 1), r"RLIMIT_FSIZE \(ulimit -f\) is 16 MiB", "File too large")


@pytest.mark.deep
def test_memory_that_tensorflow_is_refused_is_no_crash(launch):
    task = start(launch, "memory_of_tensorflow")
    limit(task, resource.RLIMIT_AS, 3 << 30)
    assert_says(ended(task, 70, "OutOfMemory"), r"RLIMIT_AS \(ulimit -v\) is 3 GiB", "std::bad_alloc")


@pytest.mark.deep
def test_a_kill_at_the_memory_limit_is_known_under_both_versions_of_cgroups(launch):
    with memory_cgroup(2 << 30) as group:
        task = start(launch, "memory")
        (group / "cgroup.procs").write_text(str(task.process.pid))
        assert_says(ended(task, 70, "OutOfMemory"), "killed by the kernel: the container's memory limit")


TOLD = [
    (Limit.THREADS, "LLVM ERROR: pthread_create failed: Resource temporarily unavailable"),
    (Limit.THREADS, "F0 env.cc:84] Check failed: ret == 0 (11 vs. 0) Thread x creation via pthread_create() failed."),
    (Limit.THREADS, "OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource temporarily una"),
    (Limit.THREADS, "terminate called after 'std::system_error'\n  what():  Resource temporarily unavailable"),
    (Limit.THREADS, "libgomp: Thread creation failed: Resource temporarily unavailable"),
    (Limit.THREADS, "sh: 1: Cannot fork"),
    (Limit.THREADS, "bash: fork: retry: Resource temporarily unavailable"),
    (Limit.THREADS, "    self.pid = os.fork()\n        ^^^^^^^\nBlockingIOError: [Errno 11] Resource temporarily una"),
    (Limit.DESCRIPTORS, "wakeup_fd_pipe.cc:40] pipe creation failed (24): Too many open files"),
    (Limit.INOTIFY, "OSError: [Errno 24] inotify_init: Too many open files"),
    (Limit.INOTIFY, "OSError: [Errno 28] inotify watch limit reached"),
    # From NCCL's and libibverbs' sources and manuals: not run here, where there is neither.
    (Limit.SHARED_MEMORY, "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Xb (size 9637888)"),
    (Limit.SHARED_MEMORY, "shm: No space left on device\nopen /dev/shm/nccl-1: No space left on device"),
    (Limit.LOCKED_MEMORY, "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"),
    (Limit.LOCKED_MEMORY, "NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory"),
    (Limit.SHARED_MEMORY, "Fatal Python error: Bus error"),
    (Limit.FILE_SIZE, "tempstate5; File too large"),
    (None, "OSError: [Errno 28] No space left on device: '/output/x'"),
    (None, "BlockingIOError: [Errno 11] Resource temporarily unavailable"),
    (None, "loss 0.3, 4 threads"),
]


@pytest.mark.parametrize(("expected", "text"), TOLD)
def test_what_is_printed_tells_the_limit(expected, text):
    assert recognise(text) is expected


def test_only_the_end_of_the_log_explains_an_abort():
    told = ["OSError: Too many open files"]
    assert recognise_lines([*told, *["x"] * 20]) == (Limit.DESCRIPTORS, told[0])
    assert recognise_lines([*told, *["x"] * 60]) == (None, "")


@pytest.mark.parametrize(
    "error", [ValueError("File too large"), OSError("413: File too large"), BlockingIOError(errno.EAGAIN, "x")]
)
def test_what_only_sounds_like_a_limit_is_an_exception(error):
    assert classify(error, has_peers=False).cause == "Exception"


def test_what_another_task_ran_out_of_is_told_without_figures_of_this_one():
    text = "/a; Too many open files\nAdditional GRPC error information from remote target /job:worker/replica:0/task:0:"
    outcome = classify(tf.errors.ResourceExhaustedError(None, None, text), has_peers=True)
    assert (outcome.code, outcome.message.split(":")[0]) == (72, "out of file descriptors")
    assert "holds" not in outcome.message


def test_a_limit_of_the_node_is_worth_another_try_on_another_node():
    bound = Bound("kernel.pid_max of the node", 32_768, 32_760, shared=True)
    found = limits.explain(Limit.THREADS, "", Usage(threads=15_100, thread_bounds=(bound,)))
    assert found.shared
    assert "raise kernel.pid_max by sysctl on the node" in found.fix


def test_an_end_before_the_first_look_has_no_figures():
    outcome = limit_reached(Limit.THREADS, "x", Usage(), seconds_ago=math.inf)
    assert outcome.message == "out of threads: x"


def test_a_look_costs_next_to_nothing():
    """It is the supervisor's, every 2 s: so much of one core."""
    usage.measure(os.getpid())
    began = time.process_time()
    for _ in range(20):
        usage.measure(os.getpid())
    assert (time.process_time() - began) / 20 < 0.02
