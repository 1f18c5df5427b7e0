"""`make recovery`: kill -9 at random moments, and how long until the next step; in place, and by fresh processes.

Two workers under MultiWorkerMirrored, one device, Mirrored on two, and workers that predict (predictions.py). `fresh`
is what a pod would do that is there at once: all processes of the job are started again as soon as one has ended. A
cluster adds its pods, their peer gate and the back-off to that. In place, the state comes from in-memory checkpoints,
else from the last one in storage.

`hangs` has the same of SIGSTOP, which only the watchdog finds: the next step at most 5 s after its time is over.
`parameter_server` has a job of its own, of which each role is killed in turn (servers.py).
`turns` has what those and the ledger cost an undisturbed run (turns.py).
`minutes` has what a kill a minute leaves of two workers' time, by the pod's own ledger, which must sum to that time.
Ends with one line of JSON; exit code 0 when the weights (or predictions) of all runs are those of the undisturbed one,
no process holds more after the last kills than after the first (held.py), and hangs were over in time; with minutes
also when at least `_GOODPUT` of the time went into new steps.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.recovery import predictions, servers, training
from tests.recovery.training import SHAPES, Job
from tests.trainer.harness import launcher, until

from tfgpujob_trainer.contract.exits import ExitCode
from tfgpujob_trainer.reporting.ledger import ALL_REDUCE, USEFUL

PREDICT = "predict"
_MANY = 100_000_000
_GOODPUT = 0.95
_LEDGER_PERCENT = 1.0
"""By which the ledger's sum may differ from the time of the pod's process: it knows all but the first moments."""


def kill_each_minute(minutes: int, *, seed: int) -> Mapping[str, Any]:
    """What a kill a minute leaves of the time of two workers, until they are told to stop."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="recovery-") as scratch, launcher(Path(scratch)) as launch:
        began = time.monotonic()
        job = Job(launch, Path(scratch) / "minutes", SHAPES["two_workers"], steps=_MANY, in_place=True)
        for minute in range(1, minutes + 1):
            due = began + 60 * minute
            until(lambda: job.steps > 0 and time.monotonic() >= due, 600)  # noqa: B023 (called at once)
            job.look()
            if minute < minutes:
                job.strike(chance)
        for task in job.tasks:
            task.process.terminate()
        codes, seconds = [task.wait() for task in job.tasks], time.monotonic() - began
        assert codes == [ExitCode.STOPPED] * 2, job.tasks[0].log
        ended = job.tasks[0].ended
        parts = {name: ms / 1000 for name, ms in ended["ledger"]["parts"].items()}
    goodput = (parts.get(USEFUL, 0.0) + parts.get(ALL_REDUCE, 0.0)) / sum(parts.values())
    percent = 100 * sum(parts.values()) / seconds
    return {
        "kills": ended.get("inPlaceRestarts", 0),
        "goodput": round(goodput, 4),
        "ledger_percent": round(percent, 2),
        "parts": {name: round(value, 1) for name, value in parts.items()},
        "ok": goodput >= _GOODPUT and abs(percent - 100) <= _LEDGER_PERCENT,
    }


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="recovery", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of each job, in place; 0: only what else is asked for")
    parser.add_argument("--beside", type=int, default=10, help="of each job, by fresh processes")
    parser.add_argument("--hangs", type=int, default=0, help="of each job, in place: SIGSTOP, which the watchdog finds")
    parser.add_argument("--turns", type=int, default=0, help="of windows with and without copies and ledger, each job")
    parser.add_argument("--only", nargs="+", choices=(*SHAPES, PREDICT), help="these of the jobs; all by default")
    parser.add_argument("--servers", type=int, default=0, help="kills of each role of parameter servers, in place")
    parser.add_argument("--minutes", type=int, default=0, help="in which two workers lose a process a minute")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    wanted, found = options.only or (*SHAPES, PREDICT), dict[str, Mapping[str, Any]]()
    for name, shape in SHAPES.items():
        if name in wanted and (options.kills or options.hangs or options.turns):
            found[name] = training.measure(
                shape,
                kills=options.kills,
                beside=options.beside,
                hangs=options.hangs,
                in_turns=options.turns,
                seed=options.seed,
            )
            print(json.dumps({name: found[name]}), file=sys.stderr, flush=True)
    if PREDICT in wanted and (options.kills or options.hangs):
        found[PREDICT] = predictions.measure(kills=options.kills, hangs=options.hangs, seed=options.seed)
    if options.servers:
        with tempfile.TemporaryDirectory(prefix="recovery-") as scratch, launcher(Path(scratch)) as launch:
            output = Path(scratch) / "servers"
            found["parameter_server"] = servers.measure(launch, output, kills=options.servers, seed=options.seed)
    if options.minutes:
        found["minutes"] = kill_each_minute(options.minutes, seed=options.seed)
    ok = all(each.get("bit_equal", True) and each.get("ok", True) for each in found.values())
    print(json.dumps({"name": "recovery", "ok": ok, **found}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
