"""`make upgrade`: 200 jobs while the operator of the last release is replaced by this checkout's, and comes back.

Ends with one line of JSON on standard output, exit code 0 when no pod was restarted and no status lost. Progress goes
to standard error. `--in-memory` takes the server of the harness for the cluster.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from localcluster.layout import ClusterError
from tests.upgrade import previous
from tests.upgrade.ground import in_memory, on_cluster
from tests.upgrade.run import Run


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="upgrade", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--in-memory", action="store_true")
    options = parser.parse_args()
    if not previous.is_there():
        sys.exit("error: this clone lacks the last release\n  fix: git fetch --unshallow")
    folder = Path(tempfile.mkdtemp(prefix="upgrade-"))
    say(f"logs in {folder}")
    began = time.monotonic()
    with (in_memory if options.in_memory else on_cluster)(folder) as ground:
        found = Run(ground, previous.checkout(folder), options.jobs, say).result()
    for problem in found.problems:
        say(problem)
    ok = not found.problems
    print(json.dumps({"name": "upgrade", "ok": ok, **found.figures, "seconds": round(time.monotonic() - began)}))
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        sys.exit(f"error: {error.problem}\n  fix: {error.fix}")
