"""TensorBoard on this machine, within seconds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_WITHOUT_TENSORFLOW: Final = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
from tensorboard.main import run_main
run_main()
"""
"""TensorBoard reads event files without TensorFlow, whose import takes half a minute and prints eight lines."""


def command_line(events: Path, port: int) -> list[str]:
    """The command that serves these events at that port; 0: at any free one."""
    flags = ["--logdir", str(events), "--port", str(port), "--load_fast", "false"]
    return [sys.executable, "-c", _WITHOUT_TENSORFLOW, *flags]
