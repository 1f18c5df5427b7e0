"""The trainer's end of the contract, as a process that cannot import the operator: JSON in, JSON out.

Each line of standard input is [question, what is given], and is answered by a line. `pod` is given {"config": text of
the file, "env": {…}} and answers with what the trainer makes of it, or {"error": …, "code": …}; `run_status` is given
what is known of a run and answers with what GET /progress says; `ended` is given a summary and answers with the
termination log; `refused` answers with the techniques that the trainer's SUPPORT refuses.
Only the modules of the trainer that need no TensorFlow are used, so any Python runs this.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfgpujob_contract import goodput
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.trainer_config import to_json
from tfgpujob_trainer.contract import config, environment, exits
from tfgpujob_trainer.contract.support import SUPPORT
from tfgpujob_trainer.reporting.ledger import Ledger
from tfgpujob_trainer.reporting.run_status import RunStatus

NS = 1_000_000_000


def pod(given: dict[str, Any]) -> dict[str, Any]:
    """What `tfgpu-train --config FILE` reads in a pod with this file and this environment."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trainer.json"
        file.write_text(given["config"])
        try:
            settings = config.load(file)
            env = environment.read(given["env"])
        except exits.ConfigError as error:
            return {"error": error.outcome().line(), "code": int(error.code)}
    return {"config": to_json(settings), "env": dataclasses.asdict(env) | {"is_chief": env.is_chief}}


def refused(_: None) -> dict[str, Any]:
    """The strategies under which the trainer does not do a technique."""
    return {one: [s for s, its in row.items() if its.kind == "refused"] for one, row in SUPPORT.items()}


def run_status(known: dict[str, Any]) -> dict[str, Any]:
    """What GET /progress says at first, and of a run of which this is known."""
    board = RunStatus()
    first = json.loads(board.to_json())
    board.update(**known)
    board.waits_for_peers = lambda: True
    board.gpu_use = lambda: known.get("gpuUsePercent")
    for split in ("train", "validation"):
        for step in range(0, 4000, 10):
            board.add_point(split, step, {"loss": float("nan") if step == 0 else 1 / step, "accuracy": 0.5})
    kept = Ledger(5 * NS, {goodput.USEFUL: 2 * NS}, reached=7, marks={goodput.RESTORED: 4 * NS})
    report = kept.report(6 * NS, 1000.0)
    board.ledger = lambda: report
    return {"first": first, "known": json.loads(board.to_json()), "ledger": report, "series": board.series(0).decode()}


def ended(summary: dict[str, Any]) -> dict[str, str]:
    """The termination log of a run that succeeded."""
    outcome = exits.Outcome(code=ExitCode.DONE, cause="Completed", message="done", summary=summary)
    report = Ledger(0, {goodput.USEFUL: 3 * NS // 2}, reached=7).report(0, 1000.0)
    outcome = dataclasses.replace(outcome, ledger=report)
    return {"log": exits.termination_log(outcome, ["the last line"] * 1000)}


if __name__ == "__main__":
    questions: dict[str, Callable[[Any], Any]] = {one.__name__: one for one in (pod, refused, run_status, ended)}
    for line in sys.stdin:
        question, given = json.loads(line)
        try:
            answer = {"answer": questions[question](given)}
        except Exception:
            answer = {"raised": traceback.format_exc()}
        print(json.dumps(answer, default=str), flush=True)
