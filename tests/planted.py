"""The table of planted bugs in docs/proof.md: `python -m tests.planted --write`, after `make venv venv-trainer`.

Each bug is a case of a test of `make test`, or names one: the numbers are those that pytest collects.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/proof.md"
BEGIN, END = "<!-- python -m tests.planted --write -->\n", "<!-- end -->\n"


@dataclass(frozen=True, slots=True)
class Row:
    """Bugs of one kind: where they are planted, and the test that must catch each."""

    what: str
    where: str
    test: str
    python: str = ".venv/bin/python"
    each: int = 1
    """Bugs in one case of the test."""
    more: str = ""
    """What the table says beside the test."""


TRAINER = ".venv-trainer/bin/python"
ROWS = (
    Row(
        "what the operator must never do",
        "tests/harness/mutations",
        "tests/unit/harness/test_mutations.py::test_planted_bug_is_caught",
    ),
    Row(
        "what strangers' objects do to it",
        "tests/harness/fuzz.py",
        "tests/unit/harness/test_fuzz.py::test_the_fuzzer_finds_each_planted_bug_and_nothing_without_it",
    ),
    Row(
        "rounds of a gang",
        "tests/trainer/test_round_stories.py",
        "tests/trainer/test_round_stories.py::test_the_stories_find_a_planted_bug",
        TRAINER,
    ),
    Row(
        "rounds with parameter servers",
        "tests/trainer/test_server_rounds.py",
        "tests/trainer/test_server_rounds.py::test_the_stories_find_a_planted_bug",
        TRAINER,
    ),
    Row(
        "leaks of a training process",
        "tests/endurance/module/leaky.py",
        "tests/trainer/test_endurance.py::test_each_planted_leak_is_found",
        TRAINER,
        each=5,
    ),
    Row(
        "leaks of any process",
        "tests/unit/endurance/test_sampling.py",
        "tests/unit/endurance/test_sampling.py::test_each_leak_is_seen_as_what_it_is",
    ),
    Row(
        "state that a run leaves in the fork server",
        "tests/trainer/test_forking.py",
        "tests/trainer/test_forking.py::test_what_a_run_leaves_in_the_server_is_found",
        TRAINER,
    ),
    Row(
        "the trainer's numbers",
        "tests/trainer/mutants.py",
        "tests/trainer/test_mutants.py::test_a_planted_bug_is_caught",
        TRAINER,
        more=" (deep), by the file of `make test` that each names",
    ),
)


def count(row: Row) -> int:
    """The bugs of a row. Raises ValueError where pytest finds no such test."""
    command = [row.python, "-m", "pytest", "--collect-only", "-q", row.test]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.search(r"(\d+) tests? collected", run.stdout)
    if run.returncode or found is None:
        raise ValueError(f"{row.test}: {run.stdout[-500:]}{run.stderr[-500:]}")
    return int(found[1]) * row.each


def table() -> str:
    """Markdown."""
    lines = ["| planted in | what goes wrong | bugs | caught by |", "|---|---|---|---|"]
    for row in ROWS:
        file, _, name = row.test.partition("::")
        test = f"`{name}` in `{file}`" if file != row.where else f"`{name}` there"
        lines.append(f"| `{row.where}` | {row.what} | {count(row)} | {test}{row.more} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the table, or say whether it is the page's."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    text = f"{before}{BEGIN}{table()}{END}{after}"
    if "--write" in sys.argv:
        PAGE.write_text(text)
    return 0 if text == PAGE.read_text() else 1


if __name__ == "__main__":
    sys.exit(main())
