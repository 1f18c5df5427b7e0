"""What strangers write, by chance along the structure of good objects: `python -m tests.harness.fuzz --seconds 600`.

A seed gives the same inputs again. Each target feeds one kind of input to the code that reads it, beside good
neighbours, and raises if it harms anybody but its owner. Planted bugs, each of which must be found, come first.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import orjson
from tests.harness.fuzz_inputs import Mutator
from tests.harness.fuzz_targets import TARGETS, Target, answers, events, jobs, large, pods, pods_made, said

from tfgpujob.api.rules import host
from tfgpujob.core import reconcile
from tfgpujob.core.observed import progress_report, trim
from tfgpujob.core.observed.snapshot import Create
from tfgpujob.core.policies import ensure_pods
from tfgpujob.kube import decoding
from tfgpujob.shell import resync, store, watch_answer
from tfgpujob_contract import limits


@dataclass(frozen=True, slots=True)
class Finding:
    target: str
    seed: int
    error: str


def run(target: Target, seed: int) -> Finding | None:
    try:
        target(Mutator(random.Random(seed)))
    except Exception as error:  # whatever it is, a stranger has caused it
        return Finding(target.__name__, seed, f"{type(error).__name__}: {error!s:.300}")
    return None


@dataclass(frozen=True, slots=True)
class Planted:
    name: str
    where: tuple[Any, str]
    bug: Any
    target: Target

    @contextmanager
    def there(self) -> Iterator[None]:
        with patch.object(*self.where, self.bug):
            yield


_build_pod = ensure_pods._build_pod
_CUBIC = re.compile(r"(mlock\w*|ibv_(reg_mr|create_)\w*)[^\n]*Cannot allocate memory")


def _at_once(ctx: Any, replica: Any) -> Create:
    create = _build_pod(ctx, replica)
    return Create(create.kind, copy.deepcopy(dict(create.body)), create.needs)


BUGS: tuple[Planted, ...] = (
    Planted("read a page as a whole or not at all", (decoding, "decoded"), orjson.loads, jobs),
    Planted("keep a spec whatever its size", (trim, "too_large"), lambda _: None, jobs),
    Planted("take every item for an object", (resync, "_has_identity"), lambda _: True, jobs),
    Planted("let kopf read what was written", (watch_answer, "reduced_job"), lambda job: job, events),
    Planted("lose an event that is too deep", (watch_answer, "decoded"), orjson.loads, events),
    Planted("end with the first odd pod", (store.Store, "put"), store.Store._put, pods),
    Planted("keep a message whatever its length", (trim, "_text"), lambda value: str(value or ""), pods),
    Planted(
        "trust an answer",
        (progress_report, "parse"),
        lambda payload: progress_report.Report.model_validate(json.loads(payload)),
        answers,
    ),
    Planted(
        "forget the host's files",
        (host, "CONTROLS"),
        tuple(control for control in host.CONTROLS if control.name != "host path"),
        pods_made,
    ),
    Planted(
        "forget privileged containers",
        (host, "CONTROLS"),
        tuple(control for control in host.CONTROLS if control.name != "privileged"),
        pods_made,
    ),
    Planted(
        "trust runPolicy to be an object",
        (reconcile, "is_ours"),
        lambda job: ((job.get("spec") or {}).get("runPolicy") or {}).get("managedBy") is None,
        jobs,
    ),
    Planted("make all bodies at once", (ensure_pods, "_build_pod"), _at_once, large),
    Planted("search with a cubic pattern", (limits, "PATTERNS"), {"locked": _CUBIC}, said),
)


def found_after(bug: Planted, most: int) -> int | None:
    """After how many inputs the planted bug is found; None: not within `most`."""
    with bug.there():
        return next((seed + 1 for seed in range(most) if run(bug.target, seed) is not None), None)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.harness.fuzz")
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=1_000_000)
    given = arguments.parse_args()
    logging.disable(logging.CRITICAL)
    missed = 0
    for bug in BUGS:
        after = found_after(bug, 3000)
        missed += after is None
        print(f"{bug.name:40} {'NOT FOUND' if after is None else f'found after {after} inputs'}")
    began, count, findings = time.monotonic(), 0, list[Finding]()
    while time.monotonic() - began < given.seconds:
        for target in TARGETS:
            finding = run(target, given.seed + count)
            if finding is not None:
                findings.append(finding)
                print(finding)
            count += 1
    seconds = time.monotonic() - began
    ok = not findings and not missed
    told = {"ok": ok, "inputs": count, "seconds": round(seconds), "findings": len(findings)}
    print(json.dumps({**told, "planted": len(BUGS), "found": len(BUGS) - missed}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
