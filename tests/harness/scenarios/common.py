"""What the stories share: jobs, ends, and words for how it comes out."""

from __future__ import annotations

from functools import partial

from tests.harness.resources import Object
from tests.harness.scenario import Do, Step, apply, at_once, job, nothing, shows, story, training

FAILED = {"train": "Failed"}
RUNNING = {"train": "Running"}
PENDING = {"train": "Pending"}
MWM = job("train", worker=2)
FOREVER = {"worker": (None,), "chief": (None,)}
STATUS = "/TFGPUJob default/train/status/"
STARTING = "lost before or after it was written that all were created: only then it counts as a disruption"
SECOND_TIME = {"worker": (None, 0)}
"""The first run lasts until something ends it: the speed of the operator must not change what happens."""
SERVERS = job("train", "ParameterServer", chief=1, worker=2, ps=1)
SECOND_CHIEF = {"chief": (None, 0)}
"""The chief runs until the gang is complete for the second time."""
lasting = partial(story, ends=FOREVER)
"""A scenario whose replicas run until a step ends them."""


def submit(obj: Object) -> Step:
    return Step(at_once, apply(obj))


def once_it_runs(do: Do) -> tuple[Step, Step]:
    """The gang trains, and the operator knows."""
    return Step(training("train"), nothing), Step(shows("train", "Running", "True"), do)
