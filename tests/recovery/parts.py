"""Parts of a measurement, one after another. The results of each are printed at its end, even if it fails.

def part(figures: Figures) -> None:
    with launching() as launch:
        figures["kills"] = 2        # there also if it fails after this
        figures.show()

exit_code = run("recovery", {"part": part})
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.trainer.harness import Launcher, Task, launcher

_LINES = 20
"""Lines of each log."""
_TASKS = 8
"""Whose logs are shown: the newest. A way to recover may have had dozens, of which the last attempt failed."""
_CHARACTERS = 300
"""Characters of an error in the line of JSON."""


class Figures(dict[str, Any]):
    """What a part has found so far, as it stands in the line of JSON."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part, self._told = part, ""

    def show(self) -> None:
        """Print it, unless it was printed."""
        line = json.dumps({self._part: self})
        if line != self._told:
            print(line, file=sys.stderr, flush=True)
        self._told = line


Part = Callable[[Figures], None]
"""Raises if it can't continue; `ok` or `bit_equal` is False in its figures if these are not as required."""


@contextmanager
def launching() -> Iterator[Launcher]:
    """A Launcher in a folder of its own. If the block fails, its error ends with the last lines of the logs."""
    folder = Path(tempfile.mkdtemp(prefix="recovery-"))
    with launcher(folder) as launch:
        try:
            yield launch
        except BaseException as error:
            error.add_note("\n".join([*map(_last_words, launch.tasks[-_TASKS:]), f"all logs: {folder}"]))
            raise
    shutil.rmtree(folder, ignore_errors=True)


def _last_words(task: Task) -> str:
    code = task.process.poll()
    end = "runs" if code is None else f"ended with exit code {code}"
    return "\n".join([f"--- {task.name} {end}:", *(f"  {line}" for line in task.log.splitlines()[-_LINES:])])


def run(name: str, parts: Mapping[str, Part]) -> int:
    """All of them, and one line of JSON in the end. The exit code: 0 if none failed, and all found what they should.

    After a KeyboardInterrupt no other part begins.
    """
    found: dict[str, Figures] = {}
    failed: dict[str, str] = {}
    for part, measure in parts.items():
        figures = found[part] = Figures(part)
        try:
            measure(figures)
        except (Exception, KeyboardInterrupt) as error:
            traceback.print_exc()
            said = str(error).partition("\n")[0][:_CHARACTERS]
            failed[part] = f"{type(error).__name__}: {said}" if said else type(error).__name__
            figures.show()
            if isinstance(error, KeyboardInterrupt):
                break
        else:
            figures.show()
    failed |= {part: "not begun" for part in parts if part not in found}
    ok = not failed and all(figures.get("bit_equal", True) and figures.get("ok", True) for figures in found.values())
    told = [{"part": part, "error": error} for part, error in failed.items()]
    print(json.dumps({"name": name, "ok": ok, **found, "failed": told}), flush=True)
    return 0 if ok else 1
