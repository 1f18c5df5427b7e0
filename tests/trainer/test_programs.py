"""The programs of examples/programs, which have loops of their own and know nothing of us, run as they are.

With the variables that a pod gives them: on two workers, and on two devices of one, what a single device computes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine import PATIENCE
from tests.pages import ROOT
from tests.trainer import resumed
from tests.trainer.guides import ON_TWO_DEVICES, PROGRAMS
from tests.trainer.harness import free_ports

LINE = re.compile(r"^epoch \d .*$", re.MULTILINE)


def run(program: str, folder: Path, *, workers: int = 1, replicas: int = 1) -> list[list[float]]:
    """The numbers of each epoch, as each worker prints them."""
    folder.mkdir(exist_ok=True)
    (folder / "keras.json").write_text(json.dumps({"floatx": "float64"}))
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    processes = []
    for index in range(workers):
        env = {"KERAS_HOME": str(folder), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        if workers > 1:
            cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            env["TF_CONFIG"] = json.dumps(cluster)
        begin = ON_TWO_DEVICES if replicas > workers else ""
        begin += f"import runpy; runpy.run_path({str(PROGRAMS / program)!r}, run_name='__main__')"
        process = subprocess.Popen(
            [sys.executable, "-c", begin],
            cwd=folder,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
    try:
        said = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    found = []
    for process, (out, errors) in zip(processes, said, strict=True):
        assert process.returncode == 0, errors[-3000:]
        assert f"replicas {replicas}\n" in out
        lines = LINE.findall(out)
        assert len(lines) == 3, out
        found.append([float(number) for line in lines for number in re.findall(r"\d+\.\d+", line)])
    return found


@pytest.mark.parametrize(
    ("program", "how"),
    [("custom_training.py", {"replicas": 2}), ("multi_worker_loop.py", {"workers": 2, "replicas": 2})],
)
@pytest.mark.deep
def test_two_replicas_print_what_one_prints(program, how, tmp_path):
    (alone,) = run(program, tmp_path / "one")
    found = run(program, tmp_path / "two", **how)
    for numbers in found:
        assert numbers == pytest.approx(alone, abs=1e-9)


def test_the_page_says_of_each_program_how_it_ended_when_it_was_killed():
    page = (ROOT / "docs/proof.md").read_text()
    for program in resumed.OWN:
        (row,) = re.findall(rf"^\| `{program}\.py` .*$", page, re.MULTILINE)
        assert row.endswith(f"| {resumed.cell(program)} |")
