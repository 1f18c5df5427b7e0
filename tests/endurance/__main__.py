"""`make endurance`: an hour of all that works for long, in which nothing that a process holds may grow.

trainer     every strategy and source of data
operator    jobs that come and go, on the cluster of the integration tests
tool        `tfgpu logs -f`, `wait`, `top` and `tensorboard`, with a fault every few seconds
logs        a log of 10 GB

Ends with one line of JSON on standard output, exit code 0 when all bounds held. Progress goes to standard error, and
with it each series of each process that broke its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.stage import say
from tests.endurance import operator, reader, tool, trainer
from tests.endurance.part import Part, Result, Stage
from tests.endurance.scenarios import BY_NAME

PARTS: dict[str, Part] = {
    "trainer": trainer.endure,
    "operator": operator.endure,
    "tool": tool.endure,
    "logs": reader.endure,
}
"""They run side by side, each for all the minutes."""


def _endured(part: Part, stage: Stage) -> Result:
    """The result of one part; if it fails, that is its result, and the others continue."""
    try:
        return part(stage)
    except Exception as error:
        traceback.print_exc()
        return Result(problems=[f"ended with {type(error).__name__}: {error}"])


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="endurance", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="divided among the scenarios")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be repeated")
    parser.add_argument("--scenario", choices=BY_NAME, action="append", help="only this of the trainer's")
    parser.add_argument("--steps", type=int, help="with --scenario: so many in one piece, instead of --minutes")
    options = parser.parse_args(arguments)
    if options.steps and not options.scenario:
        parser.error("--steps needs --scenario")
    parts = {name: PARTS[name] for name in options.part or PARTS}
    if options.scenario:
        parts = {"trainer": trainer.only([BY_NAME[name] for name in options.scenario], steps=options.steps)}
    folder, began, stopped = Path(tempfile.mkdtemp(prefix="endurance-")), time.monotonic(), threading.Event()
    say(f"logs and samples in {folder}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())

    with ThreadPoolExecutor(len(parts)) as pool:
        begun = {}
        for name, part in parts.items():
            stage = Stage(minutes=options.minutes, folder=folder / name, say=say, stopped=stopped)
            begun[name] = pool.submit(_endured, part, stage)
        found = {name: one.result() for name, one in begun.items()}
    problems = [f"{name}: {problem}" for name, result in found.items() for problem in result.problems]
    if stopped.is_set():
        problems.append("stopped before its end")
    for problem in problems:
        say(problem)
    line = {
        "name": "endurance",
        "ok": not problems,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "load": round(os.getloadavg()[2], 1),
        **{name: result.figures for name, result in found.items()},
        "problems": problems,
    }
    print(json.dumps(line))
    return 0 if not problems else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
