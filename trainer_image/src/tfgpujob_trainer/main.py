"""`tfgpu-train --config trainer.json [--set a.b=c]`: checks the configuration, then trains in child processes."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.goodput import IMPORTING, OTHER, RESTARTING, WAITING
from tfgpujob_contract.trainer_config import TrainerConfig, to_json
from tfgpujob_trainer.checkpoints.completed import CompletionMark
from tfgpujob_trainer.checkpoints.directory import Owner
from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.cluster.wait_for_workers import wait_for_workers
from tfgpujob_trainer.contract import config, entrypoint, environment, own_program, script
from tfgpujob_trainer.contract.config import parser
from tfgpujob_trainer.contract.exits import Outcome, TrainerError, classify
from tfgpujob_trainer.contract.temporary_folder import check_temporary_folder
from tfgpujob_trainer.reporting.ledger import Ledger
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.supervise import gang, processes
from tfgpujob_trainer.supervise.commands import Start
from tfgpujob_trainer.supervise.gang import in_round
from tfgpujob_trainer.supervise.last_copy import LastCopies
from tfgpujob_trainer.supervise.launcher import run, shared_gpu
from tfgpujob_trainer.supervise.own_rounds import run_in_rounds
from tfgpujob_trainer.supervise.pod_end import end_pod
from tfgpujob_trainer.supervise.processes import WarmProcess
from tfgpujob_trainer.supervise.supervisor import Supervisor

_LOOP = "tfgpujob_trainer.script.loop"
"""It imports TensorFlow, and therefore runs in a process of its own."""
_ALONE = (
    "each worker trains a model of its own on all rows; to train one model together, import tfgpujob_trainer as tfgpu, "
    "take strategy = tfgpu.strategy(), create the model in strategy.scope(), and call strategy.run(step)"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trainer; returns its exit code."""
    try:
        return train(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # before the launcher listens to signals
        return end_pod(
            Outcome(code=ExitCode.STOPPED, cause="Stopped", message="stopped by ^C before training began"), ()
        )


def train(arguments: Sequence[str]) -> int:
    """Check the configuration, then start the training processes and wait for their end; returns the pod's exit
    code.
    """
    ledger = Ledger(time.monotonic_ns())
    options = parser().parse_args(arguments)
    last_lines: Sequence[str] = ()
    try:
        check_temporary_folder()
        settings = config.load(options.config, options.set)
        environments = environment.processes(os.environ)
        env = environment.read(environments[0])
        if settings.requirements:
            environments = _with_packages(settings, environments)
        entrypoint.locate(settings.entrypoint, env.code_directory)
        path = script.find(settings, env)
    except TrainerError as error:
        outcome = error.outcome()
    except OSError as error:  # for instance, the folder for packages is full or not writable
        outcome = classify(error, has_peers=False)
    else:
        summary = CompletionMark(Path(settings.output.directory)).summary_for(to_json(settings))
        if summary is not None and not env.is_evaluator:
            outcome = Outcome(
                code=ExitCode.DONE,
                cause="Completed",
                message=f"{settings.output.directory} already holds this run, finished: nothing to do",
                fix="to train again, give it an output of its own (output.subPath in its claim); locally: --fresh",
                summary=summary,
            )
            return end_pod(outcome, ())
        if env.processes_per_gpu > 1:
            say(shared_gpu(env.processes_per_gpu, predicts=settings.mode == "predict"))
        try:
            ledger.spent(IMPORTING, time.monotonic_ns())
            if not env.joins:
                wait_for_workers(env)
            ledger.spent(WAITING, time.monotonic_ns())
            say("importing TensorFlow …")
            outcome, last_lines = _run(settings, arguments, environments, ledger, path)
        except (OSError, RuntimeError) as error:
            # This process may be refused a thread or a process, too.
            outcome = classify(error, has_peers=False)
            if outcome.cause != "LimitReached":
                raise
    return end_pod(outcome, last_lines)


def _with_packages(settings: TrainerConfig, environments: list[dict[str, str]]) -> list[dict[str, str]]:
    """Install trainer.requirements; returns the environments of processes that see the packages."""
    # Imported here, because it takes a sixth of this process's imports, and few jobs need it.
    from tfgpujob_trainer.supervise import requirements  # noqa: PLC0415

    packages = requirements.prepare(settings, environment.read(environments[0]), os.environ)
    if packages is None:
        return environments
    sys.path.insert(0, str(packages))
    return [requirements.with_packages(own, packages) for own in environments]


def _run(
    settings: TrainerConfig,
    arguments: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    ledger: Ledger,
    path: Path | None,
) -> tuple[Outcome, Sequence[str]]:
    """Run the training processes, and restart them in place if that is enabled. `path`: a script's."""
    if path is not None and script.has_own_loop(path):
        say(f"{path.name} has a training loop of its own, and runs as it is")
        if environment.read(environments[0]).has_peers and not script.has_a_strategy(path):
            say(f"warning: {path.name} has no tf.distribute strategy, so {_ALONE}")
        os.environ.update(environments[0])
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        command = [sys.executable, "-m", _LOOP, *arguments]
        return run_in_rounds(command, own_program.environment(os.environ), heeds_stops=script.heeds_stops(path))
    env = environment.read(environments[0])
    ledger.reached = env.reached_step
    in_memory = settings.mode != "predict" and not env.is_evaluator and not env.serves
    memory = MemoryFile.create() if env.recovery is not None and in_memory else None
    left = None
    if memory is not None and settings.output.store is None:
        owner = Owner(job_uid=env.job_uid, attempt=env.attempt, replica_restart=env.replica_restart)
        left = LastCopies(Path(settings.output.directory), owner, memory)
        if env.is_chief and not env.joins:
            left.take()
    warm = WarmProcess(environments[0]) if env.joins else None
    # The gang must not stop for a pod that can't continue at once.
    ready = (lambda: None) if warm is None else warm.wait_until_ready
    member = gang.member(env, len(environments), memory, ready=ready)
    if warm is None and member.speaks:
        warm = WarmProcess(environments[0])
    spawn = processes.fresh if warm is None else warm.spawn

    def start(now: Start) -> list[Supervisor]:
        if env.joins and not ledger.marks:
            ledger.spent(WAITING, time.monotonic_ns())
        restarts = member.restarts()
        of_round = [in_round(own, now, len(environments), restarts) for own in environments]
        leads = member.gang() is not None or restarts is not None
        first = Supervisor(settings, arguments, of_round[0], spawn, memory, leads=leads, ledger=ledger)
        return [first, *(Supervisor(settings, arguments, own, spawn) for own in of_round[1:])]

    leave = None if left is None else left.leave
    outcome, last_lines = run(start, member, memory, leave=leave, joins=env.joins)
    ledger.spent(OTHER if outcome.code in (ExitCode.DONE, ExitCode.STOPPED) else RESTARTING, time.monotonic_ns())
    if not env.serves and not env.is_evaluator and (line := ledger.line()):
        say(line)
    return dataclasses.replace(outcome, ledger=ledger.report(time.monotonic_ns(), time.time())), last_lines


if __name__ == "__main__":
    sys.exit(main())
