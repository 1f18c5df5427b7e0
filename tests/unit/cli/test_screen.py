"""What reaches the screen, and what stays in the logs."""

from __future__ import annotations

import json

import pytest

from tfgpujob.cli.screen import Screen, progress_line
from tfgpujob.describe.progress_words import progress_of

RECORD = {
    "tfgpu": "progress", "step": 60, "steps": 240, "epoch": 5, "epochs": 20, "loss": 0.41234,
    "examplesPerSecond": 15000.4, "stepSeconds": 0.5,
}  # fmt: skip


def test_the_lead_speaks_for_all_and_noise_stays_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(["chief-0", "worker-10"], "chief-0", everything=False)
    screen.said("chief-0", "tfgpu-train: epoch 1/20: loss 1")
    screen.said("worker-10", "tfgpu-train: epoch 1/20: loss 1")
    screen.said("chief-0", "2026 I tensorflow/core/platform: noise")
    screen.said("chief-0", json.dumps(RECORD))
    screen.said("chief-0", "tfgpu-train: weights sha256 0f1e")
    screen.said("chief-0", "tfgpu-train: goodput 1.7% of 60.0 s: importing 58.9 s")
    screen.said("chief-0", '{"tfgpu": "progress"')
    assert capsys.readouterr().out == "chief-0   | epoch 1/20: loss 1\n"


def test_what_a_script_prints_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(["worker-0", "worker-1"], "worker-0", everything=False, script=True)
    for replica in ("worker-0", "worker-1"):
        screen.said(replica, "[0.36, 0.89]")
        screen.said(replica, "tfgpu-train: epoch 1/20: loss 1")
        screen.said(replica, f"50%{json.dumps(RECORD)}")
    assert capsys.readouterr().out == "worker-0 | [0.36, 0.89]\nworker-0 | epoch 1/20: loss 1\nworker-0 | 50%\n"
    assert (
        progress_of(f"50%{json.dumps({**RECORD, 'epoch': None})}")
        == "50% step 60/240, loss 0.4123, 15000 examples/s, 1m30s to go"
    )


def test_verbose_shows_everybodys_lines(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(["worker-0", "worker-1"], "worker-0", everything=True)
    screen.said("worker-1", "anything")
    assert capsys.readouterr().out == "worker-1 | anything\n"


def test_the_progress_line() -> None:
    shown = progress_line(RECORD)
    assert shown == "[#####...............] step 60/240, epoch 5/20, loss 0.4123, 15000 examples/s, 1m30s to go"


def test_a_program_of_ones_own_may_report_less() -> None:
    assert progress_line({"step": 7, "loss": 0.5}) == "step 7, loss 0.5000"
    assert progress_line({"step": 7, "steps": None}) == "step 7"
    assert progress_of('{"tfgpu": "progress", "step": 7, "loss": null, "epoch": 2}') == "step 7, epoch 2"
    for other in ('{"tfgpu": "progress"', '{"tfgpu": "progress", "step": {}}', '{"step": 7}', "step 7"):
        assert progress_of(other) is None
