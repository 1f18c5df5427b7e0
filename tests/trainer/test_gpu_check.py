"""`make gpu`, each part in its small form on the CPU: that it runs, and finds what it is to find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu.part import Check
from tests.gpu.parts import PARTS
from tests.gpu.report import failed, judged
from tests.machine import PATIENCE

DEEP = pytest.mark.deep
FINDS = {
    "devices": {"productError", "convolutionError"},
    "products": {"teraflops"},
    "loop": {"ours", "over", "ratio", "low", "high"},
    "precision": {"stepsPerSecond", "overTf32"},
    "saved": {"stepsPerSecond", "peakMiB"},
    "kill": {"seconds"},
    "limits": {"smiMiB", "overLimit", "message"},
    "processes": {"rowsPerSecond"},
    "workers": {"loss", "lossApart"},
    "nccl": {"refused"},
    "resume": {"repeated", "resumed"},
    "parity": {"lossApart"},
}
"""What the lines of each part have in them, all together."""
CHEAP = ("nccl", "processes")


def program(*arguments: str, out: Path, **env: str) -> tuple[int, list[str]]:
    """The exit code of the program, and the lines that it prints."""
    command = [sys.executable, "-m", "tests.gpu", "--out", str(out), *arguments]
    environment = {**os.environ, **env}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in CHEAP else DEEP) for name in PARTS])
def test_a_part_finds_what_it_is_to_find(name, tmp_path):
    check = Check(tmp_path, cpu=True, quick=True)
    check.attempt(name, PARTS[name].run, PARTS[name].seconds)
    assert not any(failed(line) for line in check.lines), check.lines
    assert {key for line in check.lines for key in line} >= FINDS[name]
    assert [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()] == check.lines


def test_without_a_gpu_it_ends_with_one_line_that_says_so(tmp_path):
    code, lines = program(out=tmp_path, CUDA_VISIBLE_DEVICES="-1")
    assert code == 2
    (line,) = map(json.loads, lines)
    assert (line["part"], line["ok"]) == ("summary", False)
    assert "no NVIDIA GPU" in line["error"]


def test_it_ends_with_a_table_and_a_summary(tmp_path):
    code, lines = program("--cpu", "--quick", "--only", "devices", out=tmp_path)
    assert code == 0
    assert lines[-2].startswith("devices   ok      tensorflow 2")
    assert json.loads(lines[-1]) == {"part": "summary", "ok": True, "parts": ["devices"], "missed": []}


def test_what_no_time_is_left_for_is_not_ok(tmp_path):
    code, lines = program(
        "--cpu", "--quick", "--only", "loop", "resume", "--skip", "resume", "--budget", "1", out=tmp_path
    )
    assert code == 1
    assert json.loads(lines[-1])["missed"] == ["loop"]


def test_a_part_that_fails_says_so(tmp_path):
    def fails(part):
        part.say(way="first", found=1)
        raise AssertionError("a job ended with exit code 1")

    check = Check(tmp_path)
    check.attempt("workers", fails, 60)
    first, error = check.lines
    assert not failed(first)
    assert failed(error)
    assert error["error"] == "AssertionError: a job ended with exit code 1"


BY_HAND = {"part": "loop", "ours": "as it is", "over": "by hand"}
BFLOAT16 = {"part": "precision", "jit": "replica", "precision": "mixed_bfloat16"}


@pytest.mark.parametrize(
    ("line", "ok"),
    [
        (BY_HAND | {"ratio": 0.95, "high": 0.96}, False),
        (BY_HAND | {"ratio": 0.99, "high": 1.01}, True),
        (BY_HAND | {"over": "jit: replica", "high": 0.5}, None),
        (BFLOAT16 | {"overTf32": 1.69}, False),
        (BFLOAT16 | {"overTf32": 1.7}, True),
        (BFLOAT16 | {"overTf32": 1.0, "jit": "none"}, None),
        ({"part": "limits", "overLimit": 1.06}, False),
        ({"part": "limits", "overLimit": 0.94}, False),
        ({"part": "limits", "smiMiB": 4716}, None),
        ({"part": "resume", "repeated": True, "resumed": False}, False),
        ({"part": "resume", "repeated": True, "resumed": True}, True),
        ({"part": "kill", "seconds": 5.01}, False),
        ({"part": "kill", "seconds": 5.0}, True),
    ],
)
def test_a_line_is_judged_by_the_bounds_that_concern_it(line, ok):
    assert judged(line, full=True).get("ok") is ok


def test_a_tiny_model_on_a_cpu_is_not_judged_by_its_speed():
    assert judged(BY_HAND | {"high": 0.5}, full=False).get("ok") is None
    assert judged({"part": "resume", "repeated": True, "resumed": False}, full=False)["ok"] is False
