"""`tfgpu-train --config trainer.json [--set a.b=c]`: checks the configuration, then trains in child processes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tfgpujob_trainer import asked, config, entrypoint, environment
from tfgpujob_trainer.completed import Mark
from tfgpujob_trainer.exits import ConfigError, ExitCode, Outcome, classify
from tfgpujob_trainer.launcher import run, shared_gpu
from tfgpujob_trainer.rollcall import call_the_roll
from tfgpujob_trainer.supervisor import Supervisor, write_termination_log


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trainer; returns its exit code."""
    try:
        return train(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # before the launcher listens to signals
        return _end(Outcome(code=ExitCode.STOPPED, cause="Stopped", message="stopped by ^C before training began"), ())


def train(arguments: Sequence[str]) -> int:
    """Check the configuration, then start the training processes and wait for their end; the pod's exit code."""
    options = parser().parse_args(arguments)
    last_lines: Sequence[str] = ()
    try:
        settings = config.load(options.config, options.set)
        environments = environment.processes(os.environ)
        env = environment.read(environments[0])
        asked.check(settings, env)
        entrypoint.locate(settings.entrypoint, env.code_directory)
    except ConfigError as error:
        outcome = error.outcome()
    else:
        summary = Mark(Path(settings.output.directory)).summary_for(settings.to_json())
        if summary is not None and not env.is_evaluator:
            outcome = Outcome(
                code=ExitCode.DONE,
                cause="Completed",
                message=f"{settings.output.directory} already holds this run, finished: nothing to do",
                fix="to train again, give it a new output.directory, or a local run --fresh",
                summary=summary,
            )
            return _end(outcome, ())
        if env.processes_per_gpu > 1:
            say(shared_gpu(env.processes_per_gpu, predicts=settings.mode == "predict"))
        try:
            call_the_roll(env, say)
            outcome, last_lines = run([Supervisor(settings, arguments, own) for own in environments])
        except (OSError, RuntimeError) as error:
            # This process may be refused a thread or a process, too.
            outcome = classify(error, has_peers=False)
            if outcome.cause != "LimitReached":
                raise
    return _end(outcome, last_lines)


def say(message: str) -> None:
    """One line for people."""
    print(f"tfgpu-train: {message}", flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line, shared with the training process."""
    result = argparse.ArgumentParser(prog="tfgpu-train", description=__doc__)
    result.add_argument("--config", type=Path, required=True, metavar="FILE", help="spec.trainer as JSON")
    result.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="override one field, such as params.units=32"
    )
    return result


def _end(outcome: Outcome, last_lines: Sequence[str]) -> int:
    write_termination_log(outcome, last_lines)
    stream = sys.stdout if outcome.code == ExitCode.DONE else sys.stderr
    print(f"tfgpu-train: {outcome.line()} [exit {outcome.code}, {outcome.cause}]", file=stream, flush=True)
    return int(outcome.code)


if __name__ == "__main__":
    sys.exit(main())
