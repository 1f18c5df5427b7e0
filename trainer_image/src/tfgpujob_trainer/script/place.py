"""The line of a call in the script, or in a module beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from traceback import walk_stack

_NOT_THE_SCRIPTS = {"site-packages", "dist-packages", Path(__file__).parents[1]}
"""Parts of paths, and a folder, of files that may be below the script's folder and are not its own."""


def place_in(path: Path) -> str:
    """` at train.py:12`: the innermost stack frame in the script, or in a module beside it."""
    for frame, line in walk_stack(sys._getframe()):  # noqa: SLF001
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(path.parent) and not _NOT_THE_SCRIPTS.intersection((*file.parents, *file.parts)):
            return f" at {file.relative_to(path.parent)}:{line}"
    return ""
