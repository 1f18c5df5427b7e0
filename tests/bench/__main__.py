"""`make bench-operator`: the operator, a direct client and kube's Job controller, side by side in one run.

Measures for ten minutes at most. Ends with one line of JSON on standard output. The exit code is 0 when every bound
holds; 1 when one doesn't, rests on too few undisturbed rounds to be judged, or time was over; 130 after ^C or SIGTERM,
which print what there is. Progress goes to standard error.
`--quick` measures little of everything, to see that it works. `--base` puts another commit's operator beside these.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop
from localcluster.layout import ClusterError
from tests import commits
from tests.bench import report
from tests.bench.figures import BASE, DIRECT, FULL, KUBE, OPERATOR, QUICK, Figures, Size
from tests.bench.load import Load
from tests.bench.measure import Bench
from tests.bench.stage import Stage, check_limits, say, stage
from tests.integration.kube import Refused

from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.errors import ApiError

INTERRUPTED = 130
MOST_SECONDS = 560.0
"""For all measurements; half a minute more goes into the namespaces before and after."""


async def measure(on: Stage, size: Size, figures: Figures) -> None:
    """Fills the figures, as far as it comes."""
    async with await KubeCluster.connect() as cluster, AsyncExitStack() as stack:
        loads = {
            who: Load(cluster, name) for who, name in zip(_ways(base=bool(on.base_source)), on.namespaces, strict=True)
        }
        for load in loads.values():
            await stack.enter_async_context(load.pods.running())
        await Bench(on, cluster, loads, size, figures, say).run()


def _ways(*, base: bool) -> tuple[str, ...]:
    """The ways to create pods. Each of the two operators has the same neighbours."""
    return (OPERATOR, KUBE, BASE, DIRECT) if base else (OPERATOR, KUBE, DIRECT)


async def _in_time(on: Stage, size: Size, figures: Figures) -> None:
    async with asyncio.timeout(MOST_SECONDS):
        await measure(on, size, figures)


def measured(on: Stage, size: Size, *, quick: bool) -> int:
    """The exit code. Whatever ends it, what has been measured until then is printed."""
    figures, code = Figures(), 1
    try:
        uvloop.run(_in_time(on, size, figures))
        code = 0
    except KeyboardInterrupt:
        figures.diary.disturbed.append("interrupted: what comes after was not measured")
        code = INTERRUPTED
    except TimeoutError:
        figures.diary.disturbed.append(f"ended after {MOST_SECONDS:g} s: what comes after was not measured")
    except (ApiError, Refused) as error:
        figures.diary.disturbed.append(f"given up: {error}")
    finally:
        values = report.summary(figures, size)
        print(report.table(values, figures.diary))
        more = {"kubernetes": on.version, "quick": quick, "cpus": os.cpu_count()}
        print(report.line(values, figures.diary, **more), flush=True)
    return code or (0 if report.holds(values) else 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-operator", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little of everything")
    parser.add_argument("--base", default="", metavar="COMMIT", help="compare with the operator of this commit")
    options = parser.parse_args()
    if options.base and not commits.is_there(options.base):
        parser.error(f"--base: this clone has no commit {options.base}")
    check_limits()
    # A shell starts what is to run in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # As ^C: `timeout` and a CI that cancels a job end it by SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    folder = Path(tempfile.mkdtemp(prefix="bench-operator-"))
    purposes = [who.split()[0] for who in _ways(base=bool(options.base))]
    with stage(folder, *purposes, base=options.base) as on:
        say(f"on {on.description}, Kubernetes {on.version}; logs in {folder}")
        os.environ["KUBECONFIG"] = str(on.kube.kubeconfig)
        return measured(on, QUICK if options.quick else FULL, quick=options.quick)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        sys.exit(f"error: {error.problem}\n  fix: {error.fix}")
