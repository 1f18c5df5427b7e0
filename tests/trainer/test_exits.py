"""Exceptions to exit codes, and the termination log."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import tensorflow as tf

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer import main, own_program
from tfgpujob_trainer.contract import entrypoint
from tfgpujob_trainer.contract.exits import (
    ConfigError,
    FencedError,
    Outcome,
    StoppedError,
    classify,
    termination_log,
    users_traceback,
    without_idle_threads,
)
from tfgpujob_trainer.step import synchronous


def error(cls, message="x"):
    return cls(None, None, message)


@pytest.mark.parametrize(
    ("exception", "has_peers", "code"),
    [
        (ConfigError("x"), True, 2),
        (FencedError("x"), True, 71),
        (StoppedError("x"), True, 143),
        (ValueError("x"), True, 1),
        (SystemExit(0), False, 1),
        (MemoryError(), False, 70),
        (error(tf.errors.ResourceExhaustedError, "OOM when allocating"), True, 70),
        (error(tf.errors.UnavailableError), True, 160),
        (error(tf.errors.AbortedError), True, 160),
        (error(tf.errors.CancelledError), True, 160),
        (error(tf.errors.DeadlineExceededError), True, 160),
        (error(tf.errors.InternalError, "Collective ops is aborted by: gone"), True, 160),
        (error(tf.errors.InternalError, "a bug"), True, 1),
        (error(tf.errors.UnavailableError, "Collective ops is aborted by: NCCL: invalid usage (run with X)"), True, 1),
        (error(tf.errors.UnavailableError), False, 1),
        (TimeoutError("x"), True, 1),
    ],
)
def test_codes(exception, has_peers, code):
    assert classify(exception, has_peers=has_peers).code == code


@pytest.mark.parametrize(("file", "fix"), [("rows/of-mine.csv", "tfgpu submit --with rows;"), ("/nowhere/a.csv", "")])
def test_a_file_that_was_not_sent_can_be(file, fix):
    with pytest.raises(FileNotFoundError) as caught:
        Path(file).read_text()
    found = classify(caught.value, has_peers=False).fix
    assert fix in found
    assert bool(found) is bool(fix)


GRAPH = f"""Graph execution error:

Detected at node loss defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

  File "{synchronous.__file__}", line 3, in step

  File "/code/train.py", line 7, in call

Received a label value of 7 which is outside the valid range of [0, 3).
\t [[{{{{node loss}}}}]] [Op:__inference_function_204]"""
LAYER = "Exception encountered when calling Dense.call().\n\n\x1b[1mexpected 6, received 5\x1b[0m\n\nArguments: x"
FULL = "{{function_node a:0}} /output/variables; No space left on device [Op:SaveV2]"


@pytest.mark.parametrize(
    ("exception", "line"),
    [
        (
            error(tf.errors.InvalidArgumentError, GRAPH),
            "InvalidArgumentError: Received a label value of 7 which is outside the valid range of [0, 3).",
        ),
        (ValueError(LAYER), "ValueError: expected 6, received 5"),
        (
            ValueError(
                "Attempt to convert a value (PerReplica:{\n  0: 1,\n  1: 2\n}) with an unsupported type.\nMore."
            ),
            "ValueError: Attempt to convert a value (PerReplica:{…}) with an unsupported type.",
        ),
        (ValueError("never closed (\n1\n2"), "ValueError: never closed ("),
        (
            ModuleNotFoundError("No module named 'a'"),
            (
                "ModuleNotFoundError: No module named 'a' (send your own module with the code (tfgpu submit --code .); "
                "name a package in trainer.requirements (--requirements FILE), or put it into spec.image)"
            ),
        ),
        (
            ModuleNotFoundError("No module named 'horovod'", name="horovod"),
            (
                "ModuleNotFoundError: No module named 'horovod' (remove what is Horovod's: fit() trains on all workers "
                "without it)"
            ),
        ),
        (
            ModuleNotFoundError("No module named 'keras.layers.core'", name="keras.layers.core"),
            (
                "ModuleNotFoundError: No module named 'keras.layers.core' (keras is there, in another version perhaps: "
                "correct the import)"
            ),
        ),
        (
            error(tf.errors.ResourceExhaustedError, FULL),
            (
                "the disk is full: /output/variables; No space left on device (ask for a larger volume, or keep fewer "
                "checkpoints with trainer.checkpoint.keep)"
            ),
        ),
    ],
)
def test_the_line_says_what_happened_and_not_where(exception, line):
    outcome = classify(exception, has_peers=False)
    assert (outcome.code, outcome.line()) == (1, line)


def test_the_line_names_the_users_own_line(tmp_path):
    source = tmp_path / "train.py"
    source.write_text("import json\njson.loads('train')\n")
    with pytest.raises(ValueError, match="Expecting value") as caught:
        exec(compile(source.read_text(), str(source), "exec"), {})
    message = classify(caught.value, has_peers=False).message
    assert message == "JSONDecodeError: Expecting value: line 1 column 1 (char 0), at train.py:2"


def test_a_variable_that_is_not_set_is_named():
    with pytest.raises(KeyError) as caught:
        os.environ["EPOCHS_OF_A_TEST"]
    assert classify(caught.value, has_peers=False).fix.endswith("tfgpu submit --env EPOCHS_OF_A_TEST=VALUE")
    with pytest.raises(KeyError) as caught:
        dict[str, str]()["EPOCHS"]
    assert classify(caught.value, has_peers=False).fix == ""


def test_a_traceback_begins_with_the_users_frames(tmp_path):
    (tmp_path / "broken.py").write_text("def model():\n    return 1 / 0\n\ndef data(split): ...\n")
    (tmp_path / "wrong.py").write_text("def model(:\n")
    module = entrypoint.load("broken.py", {}, tmp_path)
    first, second, *_ = seen_by_the_trainer(module.model).splitlines()
    assert (first, second) == (
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/broken.py", line 2, in model',
    )
    shown = seen_by_the_trainer(lambda: entrypoint.load("wrong.py", {}, tmp_path))
    assert shown.startswith(f'  File "{tmp_path}/wrong.py", line 1\n')
    assert synchronous.__file__ not in users_traceback(error(tf.errors.InvalidArgumentError, GRAPH))


def seen_by_the_trainer(function):
    """The traceback of what `function` raises, without the frames of this file."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 (any)
        function()
    frames = caught.value.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return users_traceback(caught.value.with_traceback(frames))


def test_an_interrupt_before_anybody_listens_is_a_stop(monkeypatch, capsys):
    monkeypatch.setattr(main, "train", interrupted)
    assert main.main([]) == 143
    assert "stopped by ^C before training began" in capsys.readouterr().err


@pytest.mark.parametrize("begin", [lambda: main.main(["--config", "x.json"]), lambda: own_program.main(["true"])])
def test_a_container_without_a_folder_for_temporary_files(begin, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    assert begin() == 2
    assert "mount an emptyDir at /tmp" in capsys.readouterr().err


def interrupted(_):
    raise KeyboardInterrupt


def test_the_termination_log_keeps_the_last_lines_that_fit():
    outcome = Outcome(code=1, cause="Exception", message="m" * 5000, fix="f", summary={"steps": 3})
    text = termination_log(outcome, [f"line {i} " + "ü" * 300 for i in range(40)])
    record = json.loads(text)
    assert len(text.encode()) <= 4096
    assert record["code"] == 1
    assert record["summary"] == {"steps": 3}
    assert record["lastLines"][-1].startswith("line 39 ")
    assert len(record["lastLines"]) > 1


def test_a_message_that_is_too_long_is_cut_and_the_rest_is_kept():
    outcome = Outcome(code=1, cause="Exception", message="层" * 1000, fix="形" * 400, ledger={"until": 1})
    text = termination_log(outcome, ["a line"])
    assert len(text.encode()) <= 4096
    record = json.loads(text)
    assert record["message"].startswith("层层层")
    assert (record["code"], record["ledger"]) == (1, {"until": 1})


def test_threads_that_wait_for_work_do_not_push_out_the_one_that_hangs():
    idle = ["Thread 0x1 (most recent call first):", '  File "/lib/threading.py", line 331 in wait', "  File more", ""]
    busy = ["Current thread 0x2 (most recent call first):", '  File "/code/train.py", line 3 in model', "last"]
    assert without_idle_threads(["before", "", *idle, *busy]) == ["before", "", *busy]
    assert without_idle_threads([*busy, "", *idle[:-1]]) == [*busy, ""]
    assert without_idle_threads(["plain", "lines"]) == ["plain", "lines"]
    reader = ["Thread 0x3 (most recent call first):", '  File "/t/data.py", line 179 in _read_ahead', ""]
    assert without_idle_threads([*reader, *busy]) == busy


def test_whoever_has_lost_its_supervisor_ends_at_once():
    """A worker whose interpreter ended first failed its step with an error that the chief took for the user's."""
    begin = "import os; from tfgpujob_trainer.reporting.heartbeat import Heartbeat; reads, writes = os.pipe()"
    lost = "os.close(reads)\ntry: Heartbeat(writes).alive()\nfinally: print('the interpreter ends')"
    done = subprocess.run([sys.executable, "-c", f"{begin}\n{lost}"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.FAILED, "", "")


def test_the_traceback_of_a_script_begins_in_the_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import nowhere_to_be_found\n")
    with pytest.raises(ModuleNotFoundError) as caught:
        runpy.run_path(str(script))
    assert caught.tb.tb_next is not None
    from_runpy_on = caught.value.with_traceback(caught.tb.tb_next)
    lines = users_traceback(from_runpy_on).splitlines()
    assert lines[1] == f'  File "{script}", line 1, in <module>'
