"""`make resumed`: every program of examples/scripts and examples/programs, killed and started again.

By SIGKILL of the last worker, or of the one process, in the middle of each fit(); the others go as the operator has
them go. All weights, the history and what else a program has found must be those of an undisturbed run, bit for bit.
With `--write` what was found goes to resumed.json, from which the tables of docs/proof.md have
a column. A program that has changed since is to be killed again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.machine import PATIENCE
from tests.pages import ROOT
from tests.trainer.guides import (
    ALL,
    FITS,
    FOLDER,
    ON_TWO_DEVICES,
    PROGRAMS,
    SCRIPTS,
    SERVED,
    Gallery,
    end_in,
    found_by,
    said_of,
)
from tests.trainer.harness import free_ports, launcher

RECORD = Path(__file__).with_suffix(".json")
OWN = {"custom_training": 1, "multi_worker_loop": 2}
"""Programs with loops of their own, and on how many workers: the first on two devices of one."""
KILLED_AT = 9
"""The call of a tf.function in which an own program is killed: in its second epoch."""
UNDER_OWN = """
import os, runpy, signal, sys
import numpy as np
import tensorflow as tf
program, out, killed_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
function, calls = tf.function, []
def counted(step=None, **more):
    compiled = function(step, **more)
    if getattr(step, "__module__", None) != "__main__":
        return compiled
    def call(*arguments):
        calls.append(step)
        if len(calls) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return compiled(*arguments)
    return call
tf.function = counted
np.savez(out, *runpy.run_path(program, run_name="__main__")["model"].get_weights())
"""
Found = dict[str, Any]
"""Results of one setting: the number of kills, the steps after which it continued, and the largest difference."""


def cell(program: str) -> str:
    """What the tables say of a program."""
    known = json.loads(RECORD.read_text()).get(program)
    if known is None or known["sha256"] != digest(file_of(program)):
        return "not tried as it is now"
    runs = sorted(known["runs"].items())
    equal = [setting for setting, found in runs if not found["difference"]]
    anew = not any(after for _, found in runs for after in found["resumedAfter"])
    same = [f"the same bits{', from the beginning' if anew else ''}: {'; '.join(equal)}"] if equal else []
    return "; ".join([*same, *(f"off by {f['difference']:.0e}: {s}" for s, f in runs if f["difference"])])


def file_of(program: str) -> Path:
    """Where it is."""
    return (PROGRAMS if program in OWN else FOLDER) / f"{program}.py"


def digest(path: Path) -> str:
    """Digest of a program's text."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def difference(undisturbed: Sequence[dict[str, np.ndarray]], found: Sequence[dict[str, np.ndarray]]) -> float:
    """The largest of all arrays of all workers; 0 only if all bits are the same, infinite if one has another shape."""
    worst = 0.0
    for one, other in zip(undisturbed, found, strict=True):
        assert one.keys() == other.keys()
        for name, array in one.items():
            if array.shape != other[name].shape:
                return math.inf
            if array.tobytes() != other[name].tobytes():
                worst = max(worst, float(np.abs(array - other[name]).max()), sys.float_info.min)
    return worst


def of_workers(gallery: Gallery, script: str, count: int) -> Found:
    """Kill a script once in each of its fits, and let it come to its end."""
    name, fits = f"killed-{script}-{count}", FITS.get(script, 1)
    for fit in range(1, fits + 1):
        tasks = gallery.workers(name, count, (script,), **end_in({script: fit}, kill=True), TFGPU_ATTEMPT=str(fit))
        assert tasks[-1].process.returncode == 128 + signal.SIGKILL, tasks[-1].log
    tasks = gallery.workers(name, count, (script,), TFGPU_ATTEMPT=str(fits + 1))
    assert [task.process.returncode for task in tasks] == [0] * count, "\n".join(task.log for task in tasks)
    undisturbed = found_by(gallery.folder, str(count), script, count)
    found = difference(undisturbed, found_by(gallery.folder, name, script, count))
    return {"kills": fits, "resumedAfter": resumed_after(tasks[0].log), "difference": found}


def together(gallery: Gallery, scripts: Sequence[str], count: int) -> dict[str, Found]:
    """All in one process, each broken off in its last fit(), and the process killed after them: a start for all."""
    name = f"broken-{count}"
    tasks = gallery.workers(name, count, tuple(scripts), **end_in({script: FITS.get(script, 1) for script in scripts}))
    for task in tasks:
        assert task.process.returncode == 128 + signal.SIGKILL, task.log
        assert [script for script in scripts if f"broke off {script}\n" in task.log] == list(scripts), task.log
    tasks = gallery.workers(name, count, tuple(scripts), TFGPU_ATTEMPT="2")
    assert [task.process.returncode for task in tasks] == [0] * count, "\n".join(task.log for task in tasks)
    found = {}
    for script in scripts:
        worst = difference(*(found_by(gallery.folder, folder, script, count) for folder in (str(count), name)))
        after = resumed_after(said_of(tasks[0].log, script))
        found[script] = {"kills": 1, "resumedAfter": after, "difference": worst}
    return found


def of_servers(gallery: Gallery, script: str) -> Found:
    """Kill the chief of parameter servers, the only one that is in the fit()."""
    job = gallery.servers(f"servers-{script}", script)
    assert job.chief.wait() == 0, job.logs()
    job.end()
    name, fits = f"killed-servers-{script}", FITS.get(script, 1)
    job = gallery.servers(name, script, **end_in({script: 1}, kill=True))
    for fit in range(1, fits + 1):
        assert job.chief.wait() == 128 + signal.SIGKILL, job.logs()
        following = end_in({script: fit + 1}, kill=True) if fit < fits else {}
        with gallery.as_servers(name, script, following):
            job.start("chief-0")
    assert job.chief.wait() == 0, job.logs()
    after = resumed_after(job.chief.log)
    job.end()
    found = difference(*(found_by(gallery.folder, folder, script, 1) for folder in (f"servers-{script}", name)))
    return {"kills": fits, "resumedAfter": after, "difference": found}


def of_own(folder: Path, program: str, workers: int) -> Found:
    """Kill the last worker of a program with a loop of its own, and then the others, as the operator does."""
    runs = []
    for name, kills in (("undisturbed", [0]), ("killed", [KILLED_AT, 0])):
        for killed_at in kills:
            run_own(folder / f"{name}-{program}", program, workers, killed_at)
        found = [folder / f"{name}-{program}" / f"{index}.npz" for index in range(workers)]
        runs.append([dict(np.load(path)) for path in found])
    # Only one of them loads what it has saved; the first epoch that it printed shows whether it did.
    printed = (folder / f"killed-{program}" / "0.log").read_text()
    (first, *_) = re.findall(r"^epoch (\d)", printed, re.MULTILINE)
    return {"kills": 1, "resumedAfter": [int(first) - 1], "difference": difference(*runs)}


def run_own(folder: Path, program: str, workers: int, killed_at: int) -> None:
    """Run it to its end, or to the kill of its last worker."""
    folder.mkdir(exist_ok=True)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    processes = []
    for index in range(workers):
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        if workers > 1:
            cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            env["TF_CONFIG"] = json.dumps(cluster)
        begin = UNDER_OWN if workers > 1 else ON_TWO_DEVICES + UNDER_OWN
        at = killed_at if index == workers - 1 else 0
        path = str(PROGRAMS / f"{program}.py")
        with (folder / f"{index}.log").open("wb") as log:
            command = [sys.executable, "-c", begin, path, str(folder / f"{index}.npz"), str(at)]
            processes.append(subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT))
    try:
        code = processes[-1].wait(PATIENCE)
        assert code == (-signal.SIGKILL if killed_at else 0), (folder / f"{workers - 1}.log").read_text()
        if not killed_at:
            assert [process.wait(PATIENCE) for process in processes] == [0] * workers
    finally:
        for process in processes:
            process.kill()
            process.wait()


def resumed_after(log: str) -> list[int]:
    """The steps after which the fits of a script went on."""
    return [int(step) for step in re.findall(r"resuming after step (\d+)", log)]


def kill_all(
    programs: Sequence[str], counts: Sequence[int], found: Callable[[str, str, Found], None], *, in_one: bool
) -> None:
    """Kill these scripts, which run on `count` workers, and add the results of each program to `found`.

    `in_one`: scripts are aborted together, as far as they can be, and nothing else is done.
    """
    scripts = tuple(script for script in SCRIPTS if script in programs)
    with tempfile.TemporaryDirectory(prefix="resumed-") as scratch, launcher(Path(scratch)) as launch:
        gallery = Gallery(Path(scratch), launch)
        for count in counts if scripts else ():
            tasks = gallery.workers(str(count), count, scripts)
            assert [task.process.returncode for task in tasks] == [0] * count, "\n".join(task.log for task in tasks)
            if in_one:
                for script, what in together(gallery, scripts, count).items():
                    found(script, f"{on(count)}, broken off", what)
                continue
            for script in scripts:
                found(script, on(count), of_workers(gallery, script, count))
        for script in () if in_one else SERVED:
            if script in programs:
                found(script, "parameter servers", of_servers(gallery, script))
        for program, workers in () if in_one else OWN.items():
            if program in programs:
                found(program, on(workers), of_own(Path(scratch), program, workers))


def on(workers: int) -> str:
    """`2 workers`."""
    return f"{workers} worker{'s' * (workers > 1)}"


def keep(program: str, setting: str, found: Found) -> None:
    """Write it down at once, beside what is known of this program as it is now."""
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    sha256 = digest(file_of(program))
    before = known.get(program)
    runs = before["runs"] if before is not None and before["sha256"] == sha256 else {}
    known[program] = {"sha256": sha256, "runs": {**runs, setting: found}}
    there = {name: known[name] for name in sorted({*ALL, *OWN} & known.keys())}
    RECORD.write_text(f"{json.dumps(there, indent=1)}\n")


def main() -> int:
    """Kill, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.trainer.resumed", description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="such as gan; default: all")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], metavar="N", help="of scripts; default: 1 2")
    parser.add_argument("--together", action="store_true", help="break scripts off in one process, which is faster")
    parser.add_argument("--write", action="store_true", help=f"keep what is found in {RECORD.relative_to(ROOT)}")
    options = parser.parse_args()
    programs = options.programs or [*ALL, *OWN]
    if unknown := set(programs) - {*ALL, *OWN}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    runs: dict[str, list[Found]] = {program: [] for program in programs}

    def found(program: str, setting: str, what: Found) -> None:
        print(f"{program}, {setting}: {what}", file=sys.stderr, flush=True)
        runs[program].append(what)
        if options.write:
            keep(program, setting, what)

    kill_all(programs, options.workers, found, in_one=options.together)
    equal = sum(not any(one["difference"] for one in of_program) for of_program in runs.values())
    kills = sum(one["kills"] for of_program in runs.values() for one in of_program)
    ok = equal == len(runs)
    print(json.dumps({"name": "resumed", "ok": ok, "programs": len(runs), "kills": kills, "bit_equal": equal}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
