"""The files that a declared source names."""

from __future__ import annotations

import glob
import os
from typing import Any

from tfgpujob_trainer.contract.exits import ConfigError


def matching(patterns: Any, what: str) -> list[str]:
    """The files of one pattern or of several, sorted; raises ConfigError if one matches nothing."""
    wanted = [patterns] if isinstance(patterns, (str, os.PathLike)) else list(patterns)
    found = [sorted(glob.glob(os.fspath(pattern), recursive=True)) for pattern in wanted]  # noqa: PTH207 (absolute)
    for pattern, files in zip(wanted, found, strict=True):
        if not files:
            raise ConfigError(f"{what}: no file matches {pattern}", "check the path, and the mounted volume")
    return [file for files in found for file in files]
