"""The trainer's end of the contract: what it makes of a pod, and what it says of a run.

By its modules that need no TensorFlow, from its sources: it is installed in another environment.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "trainer_image/src"))

from tfgpujob_contract import goodput
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.trainer_config import to_json
from tfgpujob_trainer.contract import config, environment, exits
from tfgpujob_trainer.contract.support import SUPPORT
from tfgpujob_trainer.reporting.ledger import Ledger
from tfgpujob_trainer.reporting.run_status import RunStatus

NS = 1_000_000_000


def pod(text: str, env: dict[str, str]) -> dict[str, Any]:
    """What `tfgpu-train --config FILE` reads in a pod with this file and this environment, as JSON: `config` and `env`,
    or `error` and `code`.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trainer.json"
        file.write_text(text)
        try:
            settings = config.load(file)
            read = environment.read(env)
        except exits.ConfigError as error:
            return {"error": error.outcome().line(), "code": int(error.code)}
    known = {"config": to_json(settings), "env": dataclasses.asdict(read) | {"is_chief": read.is_chief}}
    as_json: dict[str, Any] = json.loads(json.dumps(known, default=str))
    return as_json


def refused() -> dict[str, Any]:
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


def ended(summary: dict[str, Any]) -> str:
    """The termination log of a run that succeeded."""
    outcome = exits.Outcome(code=ExitCode.DONE, cause="Completed", message="done", summary=summary)
    report = Ledger(0, {goodput.USEFUL: 3 * NS // 2}, reached=7).report(0, 1000.0)
    outcome = dataclasses.replace(outcome, ledger=report)
    return exits.termination_log(outcome, ["the last line"] * 1000)
