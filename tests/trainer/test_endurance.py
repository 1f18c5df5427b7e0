"""`make endurance` in two minutes: a number of steps of the jobs that can leak most, and of one that is made to leak.

No time decides: a leak that a minute of a job shows is found in this many steps, on any machine.
"""

from __future__ import annotations

import re
import sys
import threading
from dataclasses import replace

import pytest
from tests.endurance.bounds import TOO_SHORT
from tests.endurance.run import Found, Pace, run
from tests.endurance.scenarios import BY_NAME, SHORT, Scenario

STEPS = 1500
SAMPLES = 50

pytestmark = pytest.mark.timeout(900)


def ran(scenario: Scenario, tmp_path, steps: int = STEPS) -> Found:
    pace = Pace(seconds=0.05, steps=steps // SAMPLES)
    found = Found()
    # The sampler may run too rarely on a busy machine: then more steps are taken.
    for times in (1, 4):
        found = run(
            scenario,
            tmp_path / f"run-{times}",
            SHORT,
            pace,
            python=sys.executable,
            say=print,
            stopped=threading.Event(),
            steps=times * steps,
        )
        if not any(problem.endswith(TOO_SHORT) for problem in found.problems):
            break
    return found


@pytest.mark.parametrize(
    ("name", "steps"),
    [("multi-worker-evaluator", STEPS), ("parameter-server", STEPS), ("generator", 3000), ("predict", 20_000)],
)
@pytest.mark.deep
def test_nothing_that_a_process_holds_grows_with_the_steps(name, steps, tmp_path):
    found = ran(BY_NAME[name], tmp_path, steps)
    assert found.ok, "\n".join(found.problems)
    assert found.figures["steps"] >= 0.9 * steps


@pytest.mark.deep
def test_each_planted_leak_is_found(tmp_path):
    """A thread for each collective, a descriptor a checkpoint, a MiB an evaluation, a temporary file an epoch."""
    epochs_of_20_steps = {"globalBatchSize": 320}
    leaky = replace(BY_NAME["multi-worker"], entrypoint="leaky", config=epochs_of_20_steps, steps_per_epoch=20)
    found = ran(leaky, tmp_path, 1200)
    for broken in (
        "worker-0/.*: threads grows",
        "worker-1/.*: threads grows",
        "worker-0/.*: descriptors grows",
        "worker-0/.*: rss grows",
        "temporary files: files grows",
    ):
        assert any(re.match(broken, problem) for problem in found.problems), (broken, found.problems)
    assert not any("ended with" in problem or "too few" in problem for problem in found.problems), found.problems
