"""The tests on a cluster, part by part: `make test-cluster`, `make test-cluster-all` and a part of `make test-deep`.

The cluster that is up is used, and left up; another one is built, and ended. The operator is the same for all parts.
Exit code 0 if all went well.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from localcluster.clusters import Cluster, Local, select
from localcluster.layout import ClusterError
from tests import tiers
from tests.integration.installed import Installation
from tests.integration.kube import Kube
from tests.integration.session import FOLDER, Session

HERE = "tests/integration"
AT_ONCE = ("-n", "3", "--dist", "loadscope", "--no-loadscope-reorder")
"""By the units of parts.py, longest first."""


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    arguments: Sequence[str]
    operator: bool = True
    """Whether it is about the operator, and not about the cluster alone."""


CONFORMANCE = Part("conformance", ("tests/conformance", "-m", "cluster"), operator=False)
SMOKE = Part("smoke", (HERE, "-m", "smoke", *AT_ONCE))
REST = Part("namespaces", (HERE, "-m", "not smoke and not serial and not deep", *AT_ONCE))
RIGHTS = Part("rights", (f"{HERE}/test_rights.py",))
DEEP = Part("serial and deep", (HERE, "-m", "serial or deep"))
END = Part("end of a cluster", ("tests/unit/localcluster", "-m", "cluster"), operator=False)
PARTS = {
    "quick": (CONFORMANCE, SMOKE, REST, RIGHTS),
    "deep": (DEEP,),
    "all": (CONFORMANCE, SMOKE, REST, DEEP),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.integration")
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("--shard", default="", help="k/n: of the serial and deep tests, the k-th of n parts")
    chosen = parser.parse_args()
    if chosen.shard:
        os.environ["IT_SHARD"] = chosen.shard
    if chosen.what == "all":
        os.environ["IT_ALL"] = "1"
    cluster = select()
    try:
        was_up = cluster.is_up
        try:
            rows = run(cluster, PARTS[chosen.what])
            if not was_up and chosen.what != "quick" and not chosen.shard and isinstance(cluster, Local):
                rows.append(took(END))
        finally:
            if not was_up:
                cluster.end()
    except (ClusterError, pytest.exit.Exception) as error:
        print(f"error: {error}\n  {getattr(error, 'fix', '')}".rstrip(), file=sys.stderr)
        return 2
    if DEEP in PARTS[chosen.what] and not any(code for _, code, _ in rows):
        tiers.record("cluster", chosen.shard or "all")
    print(
        "\n"
        + "\n".join(f"{name:<18}{'passed' if code == 0 else 'FAILED'} {seconds:6.0f} s" for name, code, seconds in rows)
    )
    return int(any(code for _, code, _ in rows))


Row = tuple[str, int, float]
"""The name of a part, pytest's exit code, and seconds."""


def run(cluster: Cluster, parts: Sequence[Part]) -> list[Row]:
    """All parts, whichever fail, but none after a smoke that failed: each test would wait for what does not come."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tfgpu-it-") as folder:
        os.environ[FOLDER] = folder
        began = time.monotonic()
        session = Session(Path(folder))
        target = session.target()
        rows.append(("cluster, images", 0, time.monotonic() - began))
        rows += [took(part) for part in parts if not part.operator]
        installation = Installation.on(Kube(target.kubeconfig), target, Path(folder))
        with session.operator(installation, target):
            for part in parts:
                if part.operator:
                    rows.append(took(part))
                if part is SMOKE and rows[-1][1]:
                    break
    return rows


def took(part: Part) -> Row:
    print(f"\n=== {part.name}", flush=True)
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pytest", *part.arguments, "-q", "--durations=10"], check=False)
    return part.name, done.returncode, time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
