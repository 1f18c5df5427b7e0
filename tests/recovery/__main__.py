"""`make recovery`: kill -9 at random times, and the time until the next step; in place, and with new processes.

Two workers under MultiWorkerMirrored, one device, Mirrored on two, and workers that predict (predictions.py). `fresh`
restarts all processes of the job as soon as one has ended, as pods without any delay would. A cluster adds pod
creation, wait-for-peers and the back-off. In place, the state comes from in-memory checkpoints, else from the last one
in storage.

`left` has the time of new processes after the previous ones have given up: they start from the copy in the output
(docs/adr/0052-left-behind.md), which must be deleted then. `taken` counts the copies that were newer than storage.
`hangs` has the same for SIGSTOP, which only the watchdog detects: the next step at most 5 s after its time is over.
`parameter_server` has a job of its own, of which each role is killed in turn (servers.py). `pods` has gangs that lose
whole pods, which are replaced alone (pods.py). `minutes` has the useful share of two workers' time with a kill each
minute, by the pod's ledger, which must add up to that time.

Each part's figures go to standard error at its end, in one line of JSON; a part that fails prints those that it has,
and the last lines of its processes' logs. The others continue (parts.py).

Ends with one line of JSON; exit code 0 when no part has failed, the weights (or predictions) of all runs are those of
the undisturbed one, no process holds more after the last kills than after the first (held.py; undecided after fewer
than twelve), and hangs ended in time; with minutes also when at least `_GOODPUT` of the time was spent on new steps.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial

from tests.recovery import pods, predictions, servers, training
from tests.recovery.parts import Figures, Part, launching, run
from tests.recovery.training import SHAPES, Job
from tests.trainer.harness import until

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.goodput import ALL_REDUCE, USEFUL

PREDICT = "predict"
_MANY = 100_000_000
_GOODPUT = 0.95
_LEDGER_PERCENT = 1.0
"""By which the ledger's sum may differ from the time of the pod's process: it knows all but the first moments."""


def kill_each_minute(figures: Figures, *, minutes: int, seed: int) -> None:
    """What a kill a minute leaves of the time of two workers, until they are told to stop."""
    chance = random.Random(seed)
    with launching() as launch:
        began = time.monotonic()
        job = Job(launch, launch.directory / "minutes", SHAPES["two_workers"], steps=_MANY, in_place=True)
        for minute in range(1, minutes + 1):
            due = began + 60 * minute
            until(lambda: job.steps > 0 and time.monotonic() >= due, 600)  # noqa: B023 (called at once)
            job.look()
            if minute < minutes:
                job.strike(chance)
                figures["kills"] = minute
        for task in job.tasks:
            task.process.terminate()
        codes, seconds = [task.wait() for task in job.tasks], time.monotonic() - began
        assert codes == [ExitCode.STOPPED] * 2, f"ended with exit codes {codes}"
        ended = job.tasks[0].ended
        parts = {name: ms / 1000 for name, ms in ended["ledger"]["parts"].items()}
    goodput = (parts.get(USEFUL, 0.0) + parts.get(ALL_REDUCE, 0.0)) / sum(parts.values())
    percent = 100 * sum(parts.values()) / seconds
    figures |= {
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
    parser.add_argument("--left", type=int, default=0, help="kills of each job that gives up then, and leaves its copy")
    parser.add_argument("--hangs", type=int, default=0, help="of each job, in place: SIGSTOP, which the watchdog finds")
    parser.add_argument("--only", nargs="+", choices=(*SHAPES, PREDICT), help="these of the jobs; all by default")
    parser.add_argument("--servers", type=int, default=0, help="kills of each role of parameter servers, in place")
    parser.add_argument("--pods", type=int, default=0, help="lost pods of each of four gangs, replaced alone")
    parser.add_argument("--minutes", type=int, default=0, help="in which two workers lose a process a minute")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    # Like an interrupt from the keyboard: the results so far are printed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run("recovery", _parts(options))


def _parts(options: argparse.Namespace) -> dict[str, Part]:
    """Those that are asked for."""
    wanted, parts = options.only or (*SHAPES, PREDICT), dict[str, Part]()
    mishaps = {"kills": options.kills, "hangs": options.hangs, "seed": options.seed}
    others = {"beside": options.beside, "left": options.left}
    if options.kills or options.left or options.hangs:
        parts |= {
            name: partial(training.measure, shape, **mishaps, **others)
            for name, shape in SHAPES.items()
            if name in wanted
        }
    if PREDICT in wanted and (options.kills or options.hangs):
        parts[PREDICT] = partial(predictions.measure, **mishaps)
    if options.servers:
        parts["parameter_server"] = partial(servers.measure, kills=options.servers, seed=options.seed)
    if options.pods:
        parts["pods"] = partial(pods.measure, losses=options.pods)
    if options.minutes:
        parts["minutes"] = partial(kill_each_minute, minutes=options.minutes, seed=options.seed)
    return parts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
