"""Which tests run when: the shard of a commit, when each shard last passed, and what a change concerns.

    python -m tests.tiers shard       the shard that CI runs for this commit, such as 2/6
    python -m tests.tiers stale       shards that have not passed for STALE_DAYS; exits with 1 if there is one

`make test-all` and `make test-deep SHARD=K/6` record in ran.json what has passed; commit it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[1]
RAN = ROOT / "tests/ran.json"
SHARDS = 6
PARTS = ("unit", "trainer", "cluster")
STALE_DAYS = 14
_SOURCES = ("operator/src", "trainer_image/src", ".")


class Ran(TypedDict):
    """When a shard last passed."""

    commit: str
    time: str
    """UTC, ISO 8601."""
    load: float
    """Load of the machine in the last minute of the run."""


def shard_of(commit: str) -> str:
    """The shard of a commit, by its hash."""
    return f"{int(commit, 16) % SHARDS + 1}/{SHARDS}"


def record(part: str, shard: str, file: Path = RAN) -> None:
    """Write down that the shard of that part, or "all", has passed now, at this commit."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    row = Ran(commit=git("rev-parse", "HEAD"), time=now, load=round(os.getloadavg()[0], 1))
    shards = [f"{number}/{SHARDS}" for number in range(1, SHARDS + 1)] if shard == "all" else [shard]
    rows = {**read(file), **{f"{part} {each}": row for each in shards}}
    file.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")


def read(file: Path = RAN) -> dict[str, Ran]:
    """All that ran.json holds."""
    found: dict[str, Ran] = json.loads(file.read_text()) if file.exists() else {}
    return found


def stale(ran: dict[str, Ran], now: datetime) -> list[str]:
    """Why a release has to wait: one line for each shard that has not passed lately."""
    lines = []
    for name in (f"{part} {number}/{SHARDS}" for part in PARTS for number in range(1, SHARDS + 1)):
        if name not in ran:
            lines.append(f"{name} has never passed")
        elif (days := (now - datetime.fromisoformat(ran[name]["time"])).days) > STALE_DAYS:
            lines.append(f"{name} passed {days} days ago, at most {STALE_DAYS} are allowed")
    return lines


def concerned(files: set[str]) -> set[str]:
    """Those of these test files that have changed since the last commit, or that import a changed module.

    If nothing has changed, those that the last commit concerns.
    """
    changed = git("status", "--porcelain", "--untracked-files=all").splitlines()
    names = [line[3:].split(" -> ")[-1] for line in changed] or git("diff", "--name-only", "HEAD~1").splitlines()
    modules = [_module(name) for name in names if name.endswith(".py")]
    return {file for file in files if file in names or any(module in (ROOT / file).read_text() for module in modules)}


def _module(name: str) -> str:
    for source in _SOURCES:
        if (path := Path(name)).is_relative_to(source):
            path = path.relative_to(source)
            break
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def git(*arguments: str) -> str:
    """What git prints."""
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.rstrip("\n")


def main(command: str) -> int:
    """See the module's docstring."""
    if command == "shard":
        print(shard_of(git("rev-parse", "HEAD")))
        return 0
    lines = stale(read(), datetime.now(UTC))
    print("\n".join(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
