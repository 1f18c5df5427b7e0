"""`make bench-operator`: the operator, a direct client and kube's Job controller, side by side in one run.

Ends with one line of JSON on standard output, exit code 0 when every bound holds. Progress goes to standard error.
`--quick` measures little of everything, to see that it works.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop
from localcluster.layout import ClusterError
from tests.bench import report
from tests.bench.load import Load
from tests.bench.measure import DIRECT, FULL, KUBE, OPERATOR, QUICK, Bench, Figures, Size
from tests.bench.stage import Stage, check_limits, stage

from tfgpujob.kube.cluster import KubeCluster


async def measure(on: Stage, size: Size) -> Figures:
    async with await KubeCluster.connect() as cluster, AsyncExitStack() as stack:
        loads = dict(zip((OPERATOR, DIRECT, KUBE), (Load(cluster, name) for name in on.namespaces), strict=True))
        for load in loads.values():
            await stack.enter_async_context(load.following())
        return await Bench(on, loads, size, say).run()


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-operator", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little of everything")
    options = parser.parse_args()
    check_limits()
    folder = Path(tempfile.mkdtemp(prefix="bench-operator-"))
    with stage(folder, "operator", "direct", "kube") as on:
        say(f"on {on.description}; logs in {folder}")
        os.environ["KUBECONFIG"] = str(on.kube.kubeconfig)
        figures = uvloop.run(measure(on, QUICK if options.quick else FULL))
    values = report.summary(figures)
    print(report.table(values))
    print(report.line(values, quick=options.quick, cpus=os.cpu_count(), load=round(os.getloadavg()[0], 1)))
    return 0 if report.holds(values) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        sys.exit(f"error: {error.problem}\n  fix: {error.fix}")
