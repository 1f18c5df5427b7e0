"""`tfgpu run --local` as a person starts it, with a stand-in for training: the end, the signals, the exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine import PATIENCE
from tests.unit.local.job import Tool, until, write_job

from tfgpujob.exits import Exit
from tfgpujob.local.session import failure_of, new_job, of_weights, what_was_said

pytestmark = pytest.mark.slow


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[Tool]:
    made = Tool(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def test_a_job_read_from_a_cluster_starts_like_any_other() -> None:
    written = {"kind": "TFGPUJob", "metadata": {"name": "a"}, "spec": {}}
    left = {"resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    read = {**written, "metadata": {"name": "a", **left}, "status": {"phase": "Succeeded"}}
    new, plain = (new_job(job, None) for job in (read, written))
    assert {**new, "metadata": {**new["metadata"], "uid": ""}} == {
        **plain,
        "metadata": {**plain["metadata"], "uid": ""},
    }


def test_two_workers_find_each_other_at_ports_of_this_machine(tool: Tool) -> None:
    write_job(tool.folder, successPolicy="AllWorkers")
    code, out, err = tool.run("config")
    assert (code, err) == (Exit.OK, "")
    found = [json.loads(re.findall(r"^\{.*", tool.log(f"worker-{i}"), re.MULTILINE)[0]) for i in range(2)]
    assert found[0]["cluster"] == found[1]["cluster"]
    workers = found[0]["cluster"]["worker"]
    assert len({*workers}) == 2
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", worker) for worker in workers)
    assert f"ports: worker-0 {workers[0]}, worker-1 {workers[1]}" in out
    assert [config["task"]["index"] for config in found] == [0, 1]
    assert "worker-1 | started as worker 1 in attempt 1" in out
    assert re.search(r"try succeeded in \d+s; logs: runs/try/logs\n", out), "it has written nothing there"


def test_what_a_trainer_leaves_at_its_end_is_in_the_status_as_in_a_cluster(tool: Tool) -> None:
    write_job(tool.folder)
    code, _, _ = tool.run("tell")
    assert code == Exit.OK
    status = tool.job()["status"]
    assert status["goodput"]["reachedStep"] == 7
    # Its node is this machine; a second may end between two timestamps.
    assert status["goodput"].get("queued", 0) <= 1


def test_a_permanent_failure_fails_the_job_and_names_the_replica_and_its_log(tool: Tool) -> None:
    write_job(tool.folder)
    code, _, err = tool.run("fail")
    assert code == Exit.JOB_FAILED
    line = err.splitlines()[-1]
    assert re.search(r"try failed: try-worker-\d ended with exit code 3", line)
    assert "runs/try/logs" in line
    assert tool.job()["status"]["lastFailure"]["message"].endswith("the last line")


def test_the_failure_of_a_program_is_its_last_error_and_what_to_do_speaks_of_no_pods(tool: Tool) -> None:
    write_job(tool.folder, workers=1)
    _, _, err = tool.run("raise")
    again = "tfgpu run job.yaml --local --resume -- python"
    assert "exit code 1 (Error). ValueError: no such thing; correct the program, then: " + again in err
    assert err.endswith("(log: runs/try/logs/worker-0.log)\n")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "E: x\nValueError: a value (PerReplica:{\n  0: 1,\n  1: 2\n}) is odd",
            "ValueError: a value (PerReplica:{…}) is odd",
        ),
        ("ValueError: never closed (\n1", "ValueError: never closed ("),
        ("last words", "last words"),
        ("", ""),
    ],
)
def test_a_failure_of_several_lines_is_said_to_its_end(text: str, line: str) -> None:
    assert what_was_said(text, bundled=False) == line


@pytest.mark.parametrize(
    ("digests", "said"),
    [
        (["a", "a", None], ", all 2 replicas have equal weights"),
        (["a", "a", "b"], ", the weights of its 3 replicas differ in their last digits"),
        (["a", None], ""),
    ],
)
def test_whether_the_weights_are_equal_is_said(digests: list[str | None], said: str) -> None:
    words = [json.dumps({"summary": {"weightsSha256": digest}}) for digest in digests]
    assert of_weights([*words, "bye"]) == said


def test_a_trainer_that_fell_before_it_could_say_anything_leaves_its_error() -> None:
    trace = (
        "Traceback (most recent call last):\n  File x, line 1\nAttributeError: module 'json' has no attribute 'loads'"
    )
    assert what_was_said(trace, bundled=True) == "AttributeError: module 'json' has no attribute 'loads'"
    assert what_was_said("the loss is nan\nValueError: an older line", bundled=True) == "the loss is nan"


@pytest.mark.parametrize(
    ("cause", "message", "hint"),
    [
        ("DiskFull", "the disk is full: /dev/shm", "; make room on that disk, then: again"),
        ("Exception", "ModuleNotFoundError: No module named 'pandas'", "; pip install it here, or name it in "),
        ("Exception", "ModuleNotFoundError: No module named 'keras.layers.core'", "; ask for a larger volume, then"),
    ],
)
def test_what_to_do_here_speaks_of_this_machine(cause: str, message: str, hint: str) -> None:
    failure = {"cause": cause, "message": message, "action": "Ask for a larger volume.", "role": "worker", "index": 0}
    failed = {"type": "Failed", "message": "worker-0 ended."}
    job = {"spec": {"trainer": {}}, "status": {"lastFailure": failure, "conditions": [failed]}}
    assert hint in f"; {failure_of(job, again='again', logs='logs')[1]}"


def test_a_file_that_is_missing_beside_the_script_may_be_in_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for `python src/train.py`, which reads data/rows.npz."""
    monkeypatch.chdir(tmp_path)
    Path("rows.npz").touch()
    failed = {"type": "Failed", "message": "worker-0 ended."}
    for name, first in (("rows.npz", "add --code . to run it in this folder"), ("other.npz", "send it with the code")):
        message = f"FileNotFoundError: [Errno 2] No such file or directory: '{name}', at train.py:1"
        failure = {"cause": "Exception", "message": message, "action": "send it with the code"}
        job = {"spec": {"trainer": {}}, "status": {"lastFailure": failure, "conditions": [failed]}}
        assert failure_of(job, again="again", logs="logs")[1].startswith(f"{first}, then: again")


def test_a_program_of_ones_own_is_told_of_no_field_of_the_trainer() -> None:
    failure = {"cause": "Exception", "message": "ModuleNotFoundError: No module named 'pandas'"}
    failed = {"type": "Failed", "message": "worker-0 ended."}
    job = {"spec": {}, "status": {"lastFailure": failure, "conditions": [failed]}}
    assert failure_of(job, again="again", logs="logs")[1].startswith("pip install it here, then: again")


def test_a_command_that_is_not_there_is_a_permanent_failure(tool: Tool) -> None:
    container = {"name": "tensorflow", "image": "x", "command": ["no-such-program"]}
    write_job(tool.folder, replicaSpecs={"worker": {"template": {"spec": {"containers": [container]}}}})
    command = [sys.executable, "-m", "tfgpujob.cli", "run", "job.yaml", "--local"]
    done = subprocess.run(command, cwd=tool.folder, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.JOB_FAILED
    assert "exit code 127" in done.stderr
    assert "cannot start no-such-program: No such file or directory" in done.stderr


def test_what_the_rules_start_again_starts_again(tool: Tool) -> None:
    """SIGKILL is an exit code of 137, which is retryable."""
    write_job(tool.folder, workers=1, runPolicy={"restartScope": "Replica", "backoffLimit": 1})
    process = tool.start("die-once")
    state = tool.folder / "runs/try/.tfgpu/job.json"
    until(lambda: state.exists() and "restartRecords" in state.read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == Exit.INTERRUPTED
    (record,) = tool.job()["status"]["restartRecords"]
    assert (record["role"], record["index"], record["restarts"]) == ("worker", 0, 1)
    assert tool.job()["status"]["restarts"] == 1


def test_interrupt_stops_all_and_resume_is_the_next_attempt(tool: Tool) -> None:
    write_job(tool.folder)
    process = tool.start("wait")
    until(lambda: all("started" in tool.log(f"worker-{i}") for i in range(2)))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (Exit.INTERRUPTED, "")
    assert re.search(
        r"is stopped, no checkpoint is in \S+; continue with: tfgpu run job\.yaml --local --resume -- python", out
    )
    code, out, _ = tool.run("config", "--resume")
    assert code == Exit.OK
    assert "started as worker 0 in attempt 2" in out


def test_terminate_stops_too_with_its_own_code(tool: Tool) -> None:
    write_job(tool.folder)
    process = tool.start("wait")
    until(lambda: "started" in tool.log("worker-0"))
    process.terminate()
    assert process.wait(PATIENCE) == Exit.TERMINATED


def test_a_second_interrupt_does_not_wait(tool: Tool) -> None:
    write_job(tool.folder)
    process = tool.start("stubborn")
    until(lambda: all("started" in tool.log(f"worker-{i}") for i in range(2)))
    process.send_signal(signal.SIGINT)
    until(lambda: "no" in tool.log("worker-0").splitlines())
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == Exit.INTERRUPTED


def test_replicas_die_with_the_tool_and_the_run_goes_on_later(tool: Tool) -> None:
    write_job(tool.folder)
    process = tool.start("stubborn")
    until(lambda: all("started" in tool.log(f"worker-{i}") for i in range(2)))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.kill()
    until(lambda: not any(_runs(child) for child in children))
    write_job(tool.folder, workers=3)
    code, out, _ = tool.run("config", "--resume")
    assert code == Exit.OK
    assert "started as worker 0 in attempt 2" in out


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_older_run_is_never_touched_in_silence(tool: Tool) -> None:
    write_job(tool.folder)
    assert tool.run("config")[0] == Exit.OK
    code, _, err = tool.run("config")
    assert code == Exit.USAGE
    assert "runs/try holds an earlier run; --resume continues it, --fresh starts from the beginning" in err
    code, out, _ = tool.run("config", "--fresh")
    assert code == Exit.OK
    assert "the earlier run is now in runs/try.1" in out
    assert (tool.folder / "runs/try.1/logs/worker-0.log").exists()


def test_nothing_to_resume_is_said(tool: Tool) -> None:
    write_job(tool.folder)
    code, _, err = tool.run("config", "--resume")
    assert code == Exit.USAGE
    assert "runs/try holds no run to resume" in err


def test_one_folder_has_one_run_at_a_time(tool: Tool) -> None:
    write_job(tool.folder)
    tool.start("wait")
    until(lambda: "started" in tool.log("worker-0"))
    code, _, err = tool.run("config", "--resume")
    assert code == Exit.USAGE
    assert "another tfgpu runs a job there" in err


def test_without_the_trainer_it_is_one_line_and_exit_2(tool: Tool) -> None:
    write_job(tool.folder, "MultiWorkerMirrored", trainer={"entrypoint": "digits", "globalBatchSize": 8, "epochs": 1})
    command = [sys.executable, "-m", "tfgpujob.cli", "run", "job.yaml", "--local"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tool.folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.USAGE
    (line,) = done.stderr.splitlines()
    assert "pip install 'tfgpujob[local]'" in line
