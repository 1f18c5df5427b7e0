"""`make gpu`: what the trainer does on this machine's first NVIDIA GPU, and whether that is as it should be.

    python -m tests.gpu [--only PART ...] [--skip PART ...] [--budget SECONDS] [--out DIR] [--site FOLDER]
    python -m tests.gpu --cpu --quick      # tiny sizes on the CPU: checks this check

It needs this repository, trainer_image/src on PYTHONPATH, and an environment with tensorflow[and-cuda] of the pinned
version, or with `--site` a folder that has what such an environment has installed.

Prints one JSON line a result, with `ok` where a bound of report.py concerns it, then a table, then `summary`. Each part
runs in processes of its own and has a deadline. An error of one doesn't keep the others from running.

Exit code: 0 if all is ok, 1 if a bound is missed or a part has failed or did not run, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.gpu.part import ROOT, Check
from tests.gpu.parts import PARTS
from tests.gpu.report import failed, table

from tfgpujob_trainer.cluster.gpus import memory_mib

_NO_GPU = 2


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="tests.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--skip", nargs="+", choices=PARTS, default=[], help="not these")
    parser.add_argument("--budget", type=float, default=1800, help="seconds for all of it (%(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu", help="where results.jsonl and logs go")
    parser.add_argument("--site", type=Path, help="a folder with TensorFlow in it, beside this environment")
    parser.add_argument("--cpu", action="store_true", help="leave GPUs alone")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    options = parser.parse_args(arguments)
    # PYTHONPATH of the started processes.
    paths = [ROOT, ROOT / "trainer_image/src", options.site, os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(str(path) for path in paths if path)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.jsonl").unlink(missing_ok=True)
    check = Check(options.out.resolve(), options.cpu, options.quick, time.monotonic() + options.budget)
    if not options.cpu and not memory_mib():
        check.say("summary", ok=False, error="CUDA's driver shows no NVIDIA GPU; --cpu --quick tries the check itself")
        return _NO_GPU
    wanted = [part for part in options.only if part not in options.skip]
    _run(check, wanted)
    print(table(check.lines))
    ok = not any(failed(line) for line in check.lines)
    check.say("summary", ok=ok, parts=wanted, missed=sorted({x["part"] for x in check.lines if failed(x)}))
    return 0 if ok else 1


def _run(check: Check, wanted: Sequence[str]) -> None:
    """Those that measure one after the other, then the others beside each other; on a CPU these too one by one."""

    def attempt(name: str) -> None:
        check.attempt(name, PARTS[name].run, PARTS[name].seconds)

    for name in wanted:
        if PARTS[name].alone:
            attempt(name)
    with ThreadPoolExecutor(1 if check.cpu else len(PARTS)) as pool:
        list(pool.map(attempt, [name for name in wanted if not PARTS[name].alone]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
