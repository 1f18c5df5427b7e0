"""The end of a successful run: the test split evaluated, the model exported, the completion mark, the summary."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from tfgpujob_trainer.checkpoints.completed import CompletionMark
from tfgpujob_trainer.checkpoints.object_store import object_store
from tfgpujob_trainer.contract.config import to_json
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.model.optimizer_takeover import OptimizerTakeover, as_compiled
from tfgpujob_trainer.model.variables import weights_digest
from tfgpujob_trainer.reporting import phases
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.training_log import describe
from tfgpujob_trainer.train.built_model import Steps
from tfgpujob_trainer.train.run import Position, Run


def finish(
    run: Run[Steps], takeover: OptimizerTakeover, position: Position, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Evaluate the `test` split, export the model, mark the run as complete; returns the summary, with `more` in it."""
    run.best.restore()
    # With use_ema the averages become the weights, as at the end of Keras' fit().
    with run.built.strategy.scope():
        takeover.optimizer.finalize_variable_values(run.built.model.trainable_variables)
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
        "splits": {name: {k: float(f"{v:.6g}") for k, v in values.items()} for name, values in splits.items()},
        **({} if run.best.found.step is None else {"best": run.best.to_json(), "stoppedEarly": run.best.stops_early}),
        "weightsSha256": weights_digest(run.built.model),
        "model": str(output / model_file(run.built.model)),
    }
    if run.peers.is_chief:
        export(run.built.model, takeover, output, saved_model=run.config.export.saved_model)
    run.peers.count(True)
    if run.peers.is_chief or not (output / "checkpoints" / "OWNER.json").exists():
        CompletionMark(output).write(to_json(run.config), summary)
    remote = object_store(run.config.output.store, say)
    if remote is not None and run.peers.is_chief:
        for name in (model_file(run.built.model), "run.json", "saved_model", "checkpoints/COMPLETED.json"):
            remote.put(output, name)
        say(f"copied to {remote.url}")
    for line in summary_lines(summary):
        say(line)
    if advice := run.log.advice(run.log.total):
        say(advice)
    return summary


def model_file(model: keras.Model) -> str:
    """Where the model goes: whole, or its weights if it was made of what Keras cannot write down."""
    try:
        model.get_config()
    except NotImplementedError:
        return "model.weights.h5"
    return "model.keras"


def export(model: keras.Model, takeover: OptimizerTakeover, output: Path, *, saved_model: bool) -> None:
    """Write the model's file, and saved_model/ if asked to, each replacing an older one in one go."""
    name = model_file(model)
    temporary = output / name.replace("model.", ".model.tmp.")
    if name != "model.keras":
        say(
            f"{name} has the weights alone: {type(model).__name__} has no get_config(), by which it could be made again"
        )
    with as_compiled(takeover):
        (model.save if name == "model.keras" else model.save_weights)(temporary)
    temporary.replace(output / name)
    if saved_model:
        folder = output / ".saved_model.tmp"
        shutil.rmtree(folder, ignore_errors=True)
        model.export(folder, verbose=False)
        shutil.rmtree(output / "saved_model", ignore_errors=True)
        folder.replace(output / "saved_model")
    newest = max((output / "checkpoints").glob("step-*/run.json"), default=None)
    if newest is not None:
        shutil.copyfile(newest, output / "run.json")


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The end summary for people."""
    trained = f"{counted(summary['steps'], 'step')}, {counted(summary['epochs'], 'epoch')}"
    return [
        f"trained {trained}, {summary['examplesPerSecond']:.0f} examples/s",
        *(f"{name}: {describe(values)}" for name, values in summary["splits"].items() if values),
        f"weights sha256 {summary['weightsSha256']}",
        f"model {summary['model']}",
    ]
