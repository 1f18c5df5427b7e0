"""The fuzzer of `make differential`: that it runs, sees what differs, and that its bugs can be planted."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import numpy as np
import pytest
from tests.trainer.differential import BUGS, SAID, Run, Search, SilentError, differences, judge, play
from tests.trainer.grammar import Program, programs
from tests.trainer.mutants import PACKAGE

DIFFERENCES = Path(__file__).parent / "differences"
"""Programs that were found, as they were printed, or shortened by hand."""
WANTED = {"weight 0": np.ones((2, 3)), "predicted": np.zeros(0)}
FOUND = {**WANTED, "weight 0": np.ones((2, 3)) + 1e-5}


@hypothesis.settings(max_examples=200)
@hypothesis.given(programs())
def test_a_program_is_a_script(program):
    compile(program.source, "program.py", "exec")


def test_the_simplest_program_is_exact_on_one_replica_and_on_two():
    search = Search()
    assert search.of_seed(0, most=1) is None
    assert search.went == {"equal": 1}


@pytest.mark.deep
def test_programs_by_chance_are_exact_or_the_log_says_what_is_not():
    search = Search()
    assert search.of_seed(1, most=10) is None
    assert search.went["equal"] > 1


def kept_programs():
    """Each kept program in each of the modes that its first line names; `equal`: a note in the log is not enough."""
    for path in sorted(DIFFERENCES.glob("*.py")):
        words, source = path.read_text().removeprefix("# ").split("\n", 1)
        wanted = ["equal"] if "equal" in words.split() else ["equal", "said"]
        marks = [pytest.mark.deep] if "deep" in words.split() else []
        for mode in sorted({*words.split()} - {"equal", "deep"}):
            yield pytest.param(Program(source, mode), wanted, id=f"{path.stem}-{mode}", marks=marks)


@pytest.mark.parametrize(("program", "wanted"), list(kept_programs()))
def test_what_was_found_is_mended(program, wanted):
    assert play(program) in wanted


def test_what_differs_is_named():
    assert differences(FOUND, WANTED) == ["weight 0 is off by 1e-05"]
    assert differences({"weight 0": np.ones(3)}, {"weight 0": np.ones(4)}) == ["weight 0 has shape (3,) for (4,)"]
    assert differences({}, {"weight 0": np.ones(4)}) == ["found  for weight 0"]
    assert differences(WANTED, WANTED) == []


def test_a_difference_is_silent_unless_the_log_says_it():
    assert judge(Run("here", WANTED, ""), WANTED) == "equal"
    assert judge(Run("here", FOUND, SAID[0]), WANTED) == "said"
    assert judge(Run("here", None, "it is refused", refused=True), WANTED) == "refused"
    with pytest.raises(SilentError, match="off by 1e-05"):
        judge(Run("here", FOUND, "its gradients are means over the rows, so those are exact"), WANTED)
    with pytest.raises(SilentError, match="the trainer ends with"):
        judge(Run("here", None, "Traceback"), WANTED)


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_each_bug_can_be_planted(bug):
    text = (PACKAGE / "tfgpujob_trainer" / bug.file).read_text()
    assert [text.count(old) for old, _ in bug.edits] == [1] * len(bug.edits)
