"""`make endurance`: an hour of every strategy and source of data, in which nothing that a process holds may grow.

Ends with one line of JSON on standard output, exit code 0 when all bounds held. Progress goes to standard error, and
with it each series of each process that broke its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.endurance import trainer
from tests.endurance.scenarios import BY_NAME

Say = Callable[[str], None]
Part = Callable[[float, Path, Say], tuple[dict[str, Any], list[str]]]
"""Runs for so many minutes in a folder of its own; the figures for the JSON line, and one line for each bound that was
broken."""

PARTS: dict[str, Part] = {"trainer": trainer.endure}
"""They run side by side, each for all the minutes."""


def say(text: str) -> None:
    """To the person who waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="endurance", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="divided among the scenarios")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be repeated")
    parser.add_argument("--scenario", choices=BY_NAME, action="append", help="only this of the trainer's")
    parser.add_argument("--steps", type=int, help="with --scenario: in one piece, instead of --minutes")
    options = parser.parse_args(arguments)
    if options.steps and not options.scenario:
        parser.error("--steps needs --scenario")
    folder, began = Path(tempfile.mkdtemp(prefix="endurance-")), time.monotonic()
    say(f"logs and samples in {folder}")
    parts = dict(PARTS)
    if options.scenario:
        parts = {"trainer": trainer.only([BY_NAME[name] for name in options.scenario], steps=options.steps)}
    elif options.part:
        parts = {name: PARTS[name] for name in options.part}
    with ThreadPoolExecutor(len(parts)) as pool:
        begun = {name: pool.submit(part, options.minutes, folder / name, say) for name, part in parts.items()}
        found = {name: one.result() for name, one in begun.items()}
    problems = [f"{name}: {problem}" for name, (_, problems) in found.items() for problem in problems]
    for problem in problems:
        say(problem)
    result = {
        "name": "endurance",
        "ok": not problems,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "load": round(os.getloadavg()[2], 1),
        **{name: figures for name, (figures, _) in found.items()},
        "problems": problems,
    }
    print(json.dumps(result))
    return 0 if not problems else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
