"""`make flakes`: the tests of `make test` again and again, in random order, on a busy machine.

A stopped run continues where it was, on another machine too: each finished part is a line of flakes.jsonl with its
commit, seed, load and failures; commit it. Ends with one line of JSON, and with 1 if a test failed in one of the last
RUNS runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.tiers import ROOT, git

FILE = ROOT / "tests/flakes.jsonl"
PARTS = ("unit", "trainer")
SPIN = "while True: pass"


@contextmanager
def loaded(least: float) -> Iterator[list[float]]:
    """Processes that spin as long as the load is below `least`; the loads that were seen."""
    seen: list[float] = []
    spinning: list[subprocess.Popen[bytes]] = []
    over = threading.Event()

    def hold() -> None:
        while not over.wait(5):
            seen.append(os.getloadavg()[0])
            if seen[-1] < least and len(spinning) < least:
                spinning.append(subprocess.Popen([sys.executable, "-c", SPIN]))
            elif seen[-1] > least + 2 and spinning:
                spinning.pop().kill()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield seen
    finally:
        over.set()
        holder.join()
        for process in spinning:
            process.kill()
            process.wait()


def play(part: str, seed: int, least: float) -> dict[str, Any]:
    """One run of a part."""
    command = ["make", "--no-print-directory", f"test-{part}"]
    environment = os.environ | {"PYTEST_ADDOPTS": f"--shuffle {seed} -q"}
    began = time.monotonic()
    with loaded(least) as loads:
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    if run.returncode and not failed:
        failed = [run.stdout[-2000:] + run.stderr[-2000:]]
    median = sorted(loads)[len(loads) // 2] if loads else os.getloadavg()[0]
    took = round(time.monotonic() - began)
    commit = git("rev-parse", "--short", "HEAD")
    return {"part": part, "commit": commit, "seed": seed, "load": round(median, 1), "seconds": took, "failed": failed}


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="make flakes")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--load", type=float, default=8)
    options = parser.parse_args()
    rows = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []
    for part in PARTS:
        while sum(row["part"] == part for row in rows) < options.runs:
            row = play(part, random.randrange(1 << 32), options.load)
            rows.append(row)
            with FILE.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), file=sys.stderr, flush=True)
    failures = [row for row in rows if row["failed"]]
    print(json.dumps({"name": "flakes", "ok": not failures, "runs": len(rows), "failures": failures}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
