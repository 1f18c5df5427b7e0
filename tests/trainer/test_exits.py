"""Exceptions to exit codes, and the termination log."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from tfgpujob_trainer.exits import (
    ConfigError,
    FencedError,
    Outcome,
    StoppedError,
    classify,
    termination_log,
    without_idle_threads,
)


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
        (error(tf.errors.UnavailableError), False, 1),
        (TimeoutError("x"), True, 1),
    ],
)
def test_codes(exception, has_peers, code):
    assert classify(exception, has_peers=has_peers).code == code


def test_the_termination_log_keeps_the_last_lines_that_fit():
    outcome = Outcome(code=1, cause="Exception", message="m" * 5000, fix="f", summary={"steps": 3})
    text = termination_log(outcome, [f"line {i} " + "ü" * 300 for i in range(40)])
    record = json.loads(text)
    assert len(text.encode()) <= 4096
    assert record["code"] == 1
    assert record["summary"] == {"steps": 3}
    assert record["lastLines"][-1].startswith("line 39 ")
    assert len(record["lastLines"]) > 1


def test_threads_that_wait_for_work_do_not_push_out_the_one_that_hangs():
    idle = ["Thread 0x1 (most recent call first):", '  File "/lib/threading.py", line 331 in wait', "  File more", ""]
    busy = ["Current thread 0x2 (most recent call first):", '  File "/code/train.py", line 3 in model', "last"]
    assert without_idle_threads(["before", "", *idle, *busy]) == ["before", "", *busy]
    assert without_idle_threads([*busy, "", *idle[:-1]]) == [*busy, ""]
    assert without_idle_threads(["plain", "lines"]) == ["plain", "lines"]
