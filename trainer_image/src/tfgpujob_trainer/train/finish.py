"""The end of a successful run: the test split evaluated, the model exported, the completion mark, the summary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfgpujob_contract import phases
from tfgpujob_contract.trainer_config import to_json
from tfgpujob_trainer.checkpoints.completed import CompletionMark
from tfgpujob_trainer.checkpoints.object_store import object_store
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.numbers import rounded
from tfgpujob_trainer.reporting.training_log import describe
from tfgpujob_trainer.train.built_model import Steps
from tfgpujob_trainer.train.equal_weights import agree_on_weights
from tfgpujob_trainer.train.exports import INT8, LITERT, SAVED_MODEL, export, model_file
from tfgpujob_trainer.train.run import Position, Run


def finish(run: Run[Steps], position: Position, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Evaluate the `test` split, export the model, mark the run as complete; returns the summary, with `more` in it."""
    digest = agree_on_weights(run.built.model, run.peers, position.step)
    splits = {"train": run.last_epoch}
    if run.built.test is not None:
        splits["test"] = run.evaluate(run.built.test)
    run.heartbeat.beat(phases.EXPORTING, position.step)
    output = Path(run.config.output.directory)
    summary: dict[str, Any] = {
        "steps": position.step,
        "epochs": position.epoch,
        "examples": position.examples,
        **(more or {}),
        "examplesPerSecond": run.log.total.rate,
        "stepSeconds": run.log.total.step_seconds,
        "inputWait": run.log.total.input_wait,
        "allReduce": run.log.total.all_reduce,
        "splits": {name: {key: rounded(value) for key, value in values.items()} for name, values in splits.items()},
        **({} if run.best.found.step is None else {"best": run.best.to_json(), "stoppedEarly": run.best.stops_early}),
        "weightsSha256": digest,
        "model": str(output / model_file(run.built.model)),
    }
    if run.peers.is_chief:
        export(run.built.model, run.built.takeover, output, run.config.export)
    run.peers.count(True)
    if run.peers.is_chief or not (output / "checkpoints" / "OWNER.json").exists():
        CompletionMark(output).write(to_json(run.config), summary)
    remote = object_store(run.config.output.store)
    if remote is not None and run.peers.is_chief:
        exported = model_file(run.built.model), SAVED_MODEL, LITERT, INT8
        for name in (*exported, "run.json", "checkpoints/COMPLETED.json"):
            remote.put(output, name)
        say(f"copied to {remote.url}")
    for line in summary_lines(summary):
        say(line)
    if advice := run.log.advice(run.log.total):
        say(advice)
    return summary


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The end summary for people."""
    trained = f"{counted(summary['steps'], 'step')}, {counted(summary['epochs'], 'epoch')}"
    return [
        f"trained {trained}, {summary['examplesPerSecond']:.0f} examples/s",
        *(f"{name}: {describe(values)}" for name, values in summary["splits"].items() if values),
        f"weights sha256 {summary['weightsSha256']}",
        f"model {summary['model']}",
    ]
