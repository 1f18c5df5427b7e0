"""A requirements file of pip as spec.trainer.requirements."""

from __future__ import annotations

import re
from pathlib import Path

_COMMENT = re.compile(r"(^|\s)#.*")
_NAMES_A_FILE = re.compile(r"-[rc]|--(requirement|constraint)\b")


def requirement_lines(file: Path) -> list[str]:
    """Its lines without comments, continued lines joined.

    Raises OSError, and ValueError for a line that refers to another file, which does not exist where the job runs.
    """
    joined = file.read_text().replace("\\\n", " ")
    lines = [" ".join(_COMMENT.sub("", line).split()) for line in joined.splitlines()]
    found = [line for line in lines if line]
    for line in found:
        if _NAMES_A_FILE.match(line):
            raise ValueError(f"{file} has the line {line}: write what is in that file in its place")
    return found
