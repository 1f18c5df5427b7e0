"""Reports the end of a pod: to Kubernetes in the termination log, to people in a line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.variables import LocalVariable
from tfgpujob_trainer.contract.exits import Outcome, termination_log


def end_pod(outcome: Outcome, last_lines: Sequence[str]) -> int:
    """Report it; returns the pod's exit code."""
    write_termination_log(outcome, last_lines)
    stream = sys.stdout if outcome.code == ExitCode.DONE else sys.stderr
    print(f"tfgpu-train: {outcome.line()} [exit {outcome.code}, {outcome.cause}]", file=stream, flush=True)
    return int(outcome.code)


def write_termination_log(outcome: Outcome, last_lines: Sequence[str]) -> None:
    """Write the explanation where Kubernetes reads it. Outside a pod that file does not exist, and nothing is
    written.
    """
    path = Path(os.environ.get(LocalVariable.TERMINATION_LOG, "/dev/termination-log"))
    if LocalVariable.TERMINATION_LOG not in os.environ and not path.exists():
        return
    try:
        path.write_text(termination_log(outcome, last_lines))
    except OSError as error:
        print(f"tfgpu-train: cannot write {path}: {error.strerror}", file=sys.stderr)
