"""Random stories: a Hypothesis state machine over everything that people, clusters and operators do.

`python -m tests.harness.sequences` plays 10,000 of them, with `--shape elastic` only those of such jobs. A story that
broke a promise is printed as a list of acts; it goes into `kept_sequences.py`, and is played again for ever.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.harness.faults import READ_FAULTS, Fault
from tests.harness.feed import Sight
from tests.harness.story import POLICIES, SHAPES, SPEC_EDITS, Story

JOBS = st.sampled_from(("a", "b"))
_chosen = sorted(SHAPES)
JOB_SHAPES = st.deferred(lambda: st.sampled_from(_chosen))
PODS = st.integers(0, 7)
LENGTH = 20
PAUSES = st.sampled_from((0.01, 0.03, 0.6, 0.6, 3.0, 3.0, 12.0, 12.0, 40.0, 150.0))
ENDINGS = ("evict", "vanish", "drain", "exit 0", "exit 1", "exit 137", "exit 160")
OBSTACLES = st.one_of(
    st.tuples(st.just("quota"), st.sampled_from((0, 1, 2, None, None))),
    st.tuples(st.just("room"), st.sampled_from((0, 1, 2, 3, 5, 64))),
    st.tuples(st.just("image"), st.booleans()),
    st.tuples(st.just("foreign"), st.sampled_from(("Pod", "Service", "Evaluator")), JOBS),
    st.tuples(st.just("forbid"), JOBS, st.sampled_from(("worker-0", "worker-1", "chief-0", "evaluator-0"))),
    st.tuples(st.just("clock"), st.sampled_from((-300.0, -2.0, 2.0, 300.0))),
    st.just(("heal",)),
)


class BrokenPromiseError(Exception):
    """A story that ended badly."""

    def __init__(self, acts: list[tuple[Any, ...]], problems: list[str]) -> None:
        super().__init__(f"{problems[:5]}\nstory: {acts!r}")
        self.acts = acts


class Stories(RuleBasedStateMachine):
    """Each rule is one act; `teardown` lets the world come to rest and checks how it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story()
        self.acts: list[tuple[Any, ...]] = []

    def do(self, *act: Any, pause: float = 0.0) -> None:
        for one in (act, ("wait", pause)) if pause else (act,):
            self.acts.append(one)
            self.story.act(*one)

    @initialize(shape=JOB_SHAPES, pause=PAUSES)
    def begin(self, shape: str, pause: float) -> None:
        self.do("create", "a", shape, pause=pause)

    @rule(job=JOBS, shape=JOB_SHAPES, pause=PAUSES)
    def create(self, job: str, shape: str, pause: float) -> None:
        self.do("create", job, shape, pause=pause)

    @rule(job=JOBS, shape=JOB_SHAPES, pause=PAUSES, policy=st.sampled_from(POLICIES))
    def recreate(self, job: str, shape: str, pause: float, policy: str) -> None:
        self.do("delete", job, policy)
        self.do("create", job, shape, pause=pause)

    @rule(job=JOBS, edit=st.sampled_from(sorted(SPEC_EDITS)), pause=PAUSES)
    def edit(self, job: str, edit: str, pause: float) -> None:
        self.do("edit", job, edit, pause=pause)

    @rule(job=JOBS, policy=st.sampled_from(POLICIES), pause=PAUSES)
    def delete(self, job: str, policy: str, pause: float) -> None:
        self.do("delete", job, policy, pause=pause)

    @rule(pod=PODS, how=st.sampled_from(ENDINGS), pause=PAUSES)
    def pod_ends(self, pod: int, how: str, pause: float) -> None:
        self.do("pod", pod, how, pause=pause)

    @rule(pod=PODS, other=PODS, how=st.sampled_from(ENDINGS), too=st.sampled_from(ENDINGS), pause=PAUSES)
    def two_pods_end(self, pod: int, other: int, how: str, too: str, pause: float) -> None:
        self.do("pod", pod, how)
        self.do("pod", other, too, pause=pause)

    @rule(act=OBSTACLES, pause=PAUSES)
    def obstacle(self, act: tuple[Any, ...], pause: float) -> None:
        self.do(*act, pause=pause)

    @rule(how=st.sampled_from(("kill", "stop", "upgrade", "second")), pause=PAUSES)
    def operator(self, how: str, pause: float) -> None:
        self.do("operator", how, pause=pause)

    @rule(fault=st.sampled_from(sorted(Fault)), writes=st.integers(0, 4))
    def write_fails(self, fault: str, writes: int) -> None:
        self.do("write", fault, writes)

    @rule(fault=st.sampled_from(READ_FAULTS), reads=st.integers(0, 4))
    def read_fails(self, fault: str, reads: int) -> None:
        self.do("read", str(fault), reads)

    @rule(seconds=st.sampled_from((3.0, 20.0, 90.0)), pause=PAUSES)
    def outage(self, seconds: float, pause: float) -> None:
        self.do("outage", seconds, pause=pause)

    @rule(seconds=st.sampled_from((0.0, 5.0, 30.0)))
    def controllers(self, seconds: float) -> None:
        self.do("controllers", seconds)

    @rule(seed=st.integers(0, 1000))
    def latency(self, seed: int) -> None:
        self.do("latency", seed)

    @rule(sight=st.sampled_from(sorted(Sight)), events=st.integers(0, 4))
    def event_fails(self, sight: str, events: int) -> None:
        self.do("event", sight, events)

    def teardown(self) -> None:
        problems = self.story.end()
        if problems:
            raise BrokenPromiseError(self.acts, problems)


def replay(acts: Sequence[tuple[Any, ...]]) -> list[str]:
    """Play one story; what is wrong with it."""
    story = Story()
    try:
        for act in acts:
            story.act(*act)
    except BaseException:
        story.close()
        raise
    return story.end()


def shortened(acts: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Leave out acts, many at first, for as long as the story ends badly: quicker here than Hypothesis' own way."""
    size = len(acts) // 2
    while size:
        start = 0
        while start < len(acts):
            fewer = acts[:start] + acts[start + size :]
            if replay(fewer):
                acts = fewer
            else:
                start += size
        size //= 2
    return acts


def choose(shapes: Sequence[str]) -> None:
    """Have all stories of this process be of such jobs; before the first."""
    _chosen[:] = shapes


def play(count: int, seed: int) -> str:
    """Play `count` random stories; the report of the one that failed, shrunk, or nothing."""
    how = settings(
        max_examples=count,
        stateful_step_count=LENGTH,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=(Phase.generate,),
    )
    machine: Any = hypothesis.seed(seed)(Stories)
    try:
        run_state_machine_as_test(machine, settings=how)
    except BrokenPromiseError as broken:
        acts = shortened(broken.acts)
        return f"seed {seed}: {replay(acts)[:5]}\n{acts!r}"
    except Exception as error:
        return f"seed {seed}: {error!r}"
    finally:
        asyncio.set_event_loop(None)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--shape", action="append", choices=sorted(SHAPES), help="of the jobs; all if none is given")
    arguments = parser.parse_args()
    started = time.monotonic()
    batch = min(250, arguments.count)
    batches = -(-arguments.count // batch)
    reports = []
    shapes = arguments.shape or sorted(SHAPES)
    with ProcessPoolExecutor(arguments.processes, initializer=choose, initargs=(shapes,)) as pool:
        told = pool.map(play, [batch] * batches, range(arguments.seed, arguments.seed + batches))
        for done, report in enumerate(told, start=1):
            print(f"{done * batch} of {batches * batch}", file=sys.stderr, flush=True)
            if report:
                reports.append(report)
                print(report, flush=True)
    figures = {
        "name": "sequences",
        "ok": not reports,
        "sequences": batch * batches,
        "violations": len(reports),
        "seed": arguments.seed,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(figures))
    sys.exit(0 if figures["ok"] else 1)


if __name__ == "__main__":
    main()
