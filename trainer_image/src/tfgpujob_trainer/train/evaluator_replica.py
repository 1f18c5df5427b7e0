"""The evaluator replica: continuous evaluation of the newest checkpoint until the training run is complete."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tfgpujob_contract import phases
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.trainer_config import to_json
from tfgpujob_trainer.checkpoints.completed import CompletionMark
from tfgpujob_trainer.checkpoints.directory import Owner
from tfgpujob_trainer.checkpoints.object_store import object_store
from tfgpujob_trainer.checkpoints.store import Saved, place, store_at, variables_to_save
from tfgpujob_trainer.contract.exits import ConfigError, Outcome, StoppedError
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.numbers import one_number
from tfgpujob_trainer.reporting.training_log import describe
from tfgpujob_trainer.train.built_model import Built, Steps
from tfgpujob_trainer.train.trainer import Evaluate

_POLL_SECONDS = 1.0


def follow(built: Built[Steps], evaluate: Evaluate) -> Outcome:
    """Evaluate the `validation` split, else `test`, of every newest checkpoint; ends with the training run, or with the
    script that trains.
    """
    session, settings = built.session, built.fit.settings
    data = built.validation or built.test
    if data is None:
        fix = (
            "pass fit() validation_data"
            if built.fit.of_script
            else "let data() return a 'validation' or a 'test' split"
        )
        raise ConfigError("an evaluator has nothing to evaluate on", fix)
    output = Path(settings.output.directory)
    reader = Owner(job_uid="", attempt=1, replica_restart=0)
    remote = object_store(settings.output.store)
    store = store_at(output, remote, reader, keep=settings.checkpoint.keep)
    seen = 0
    say(f"following the checkpoints in {store.directory}")
    while True:
        if remote is not None:
            store.directory.mkdir(parents=True, exist_ok=True)
            remote.get("checkpoints/COMPLETED.json", CompletionMark(output).path)
        # Read before the checkpoints, because none follows the mark.
        mark = CompletionMark(output)
        finished = any(mark.summary_for(to_json(one)) is not None for one in (settings, session.job))
        saved = store.latest(newer_than=seen)
        if saved is not None:
            seen = _load(built, saved)
            values = evaluate(data)
            numbers = {name: one_number(value) for name, value in values.items()}
            print(json.dumps({"tfgpu": "evaluation", "step": seen, **numbers}), flush=True)
            say(f"step {seen}: {describe(numbers)}")
        elif finished:
            return Outcome(code=ExitCode.DONE, cause="Completed", message=f"evaluated up to step {seen}")
        if session.stop.set:
            raise StoppedError(f"stopped by SIGTERM; step {seen} was evaluated last")
        session.heartbeat.beat(phases.WAITING, seen)
        time.sleep(_POLL_SECONDS)


def _load(built: Built[Steps], saved: Saved) -> int:
    arrays = {place(name): array for name, array in saved.arrays().items()}
    for name, variable in variables_to_save(built.model).items():
        if name.startswith("model/"):
            variable.assign(arrays[place(name)])
    return int(saved.state["position"]["step"])
