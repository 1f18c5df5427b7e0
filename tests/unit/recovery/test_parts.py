"""tests/recovery/parts.py and held.py: the results of parts when one fails, and after too few kills."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.recovery.held import Held
from tests.recovery.parts import Figures, Part, launching, run
from tests.trainer.harness import Launcher, until

Printed = pytest.CaptureFixture[str]


def good(figures: Figures) -> None:
    figures |= {"p50_seconds": 1.5, "bit_equal": True}


def raises(error: BaseException) -> Part:
    def part(figures: Figures) -> None:
        figures["kills"] = 3
        raise error

    return part


def told(capsys: Printed, parts: dict[str, Part]) -> tuple[int, dict[str, Any], list[str]]:
    """The exit code, the line of JSON, and what was said before."""
    code = run("recovery", parts)
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    return code, json.loads(line), printed.err.splitlines()


def test_all_that_went_well_is_one_line(capsys: Printed) -> None:
    code, line, said = told(capsys, {"first": good, "second": good})
    assert code == 0
    figures = {"p50_seconds": 1.5, "bit_equal": True}
    assert line == {"name": "recovery", "ok": True, "first": figures, "second": figures, "failed": []}
    assert [json.loads(each) for each in said] == [{"first": figures}, {"second": figures}]


def test_what_was_found_before_and_after_a_part_that_fails_is_told(capsys: Printed) -> None:
    error = AssertionError("it hangs\n" + 1000 * "a line of a log\n")
    code, line, said = told(capsys, {"first": good, "bad": raises(error), "last": good})
    assert code == 1
    assert not line["ok"]
    assert (line["first"], line["bad"], line["last"]) == (good_figures(), {"kills": 3}, good_figures())
    assert line["failed"] == [{"part": "bad", "error": "AssertionError: it hangs"}]
    assert '{"bad": {"kills": 3}}' in said


def good_figures() -> Figures:
    figures = Figures("")
    good(figures)
    return figures


@pytest.mark.parametrize("figures", [{"bit_equal": False}, {"ok": False}])
def test_what_is_not_as_it_should_be_is_no_failure_but_not_ok(capsys: Printed, figures: dict[str, bool]) -> None:
    code, line, _ = told(capsys, {"wrong": lambda found: found.update(figures)})
    assert (code, line["ok"], line["failed"]) == (1, False, [])


def test_after_an_interrupt_nothing_begins_and_all_is_told(capsys: Printed) -> None:
    code, line, _ = told(capsys, {"first": good, "long": raises(KeyboardInterrupt()), "last": good})
    assert code == 1
    assert line["first"] == good_figures()
    assert line["failed"] == [{"part": "long", "error": "KeyboardInterrupt"}, {"part": "last", "error": "not begun"}]
    assert "last" not in line


def test_figures_are_told_once(capsys: Printed) -> None:
    def part(figures: Figures) -> None:
        figures["kills"] = 1
        figures.show()
        figures.show()

    _, _, said = told(capsys, {"part": part})
    assert said == ['{"part": {"kills": 1}}']


def test_a_failed_part_shows_the_end_of_each_log(capsys: Printed) -> None:
    folders: list[Path] = []

    def part(_: Figures) -> None:
        with launching() as launch:
            folders.append(launch.directory)
            ended = say(launch, 100, TFGPU_REPLICA_TYPE="ps", TFGPU_REPLICA_INDEX="1")
            until(lambda: ended.process.poll() is not None)
            hanging = say(launch, 1, then="; import time; time.sleep(600)")
            until(lambda: "said 0" in hanging.log)
            raise TimeoutError("no step")

    code, line, said = told(capsys, {"bad": part})
    (folder,) = folders
    try:
        assert (folder / "task1.log").exists()
    finally:
        shutil.rmtree(folder)
    assert (code, line["failed"]) == (1, [{"part": "bad", "error": "TimeoutError: no step"}])
    assert "--- task1 (ps-1) ended with exit code 0:" in said
    assert {"  said 80", "  said 99"} <= set(said)
    assert "  said 79" not in said
    assert "--- task2 (worker-0) runs:" in said
    assert f"all logs: {folder}" in said


def say(launch: Launcher, lines: int, *, then: str = "", **env: str) -> Any:
    text = f"[print('said', i, flush=True) for i in range({lines})]{then}"
    return launch.start_command([sys.executable, "-c", text], env=env)


def test_of_a_part_that_went_well_nothing_is_left() -> None:
    with launching() as launch:
        assert launch.directory.is_dir()
    assert not launch.directory.exists()


@pytest.mark.parametrize(("samples", "expected"), [(3, None), (40, [])])
def test_after_too_few_kills_nobody_can_tell_what_has_grown(samples: int, expected: list[str] | None) -> None:
    held = Held({"worker-0": os.getpid()})
    for _ in range(samples):
        held.sample()
    assert held.grown() == expected
