"""`tfgpu-supervise PROGRAM [ARGUMENT…]`: runs a program of one's own, and starts it again in its pod.

It is to such a program what `tfgpu-train` is to the bundled trainer. Imports no TensorFlow.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from tfgpujob_trainer.contract import environment, own_program
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError, ExitCode, Outcome, TrainerError, classify
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.reporting.phases import STARTING
from tfgpujob_trainer.reporting.progress_endpoint import serve
from tfgpujob_trainer.reporting.resize_requests import ResizeRequests
from tfgpujob_trainer.reporting.run_status import RunStatus
from tfgpujob_trainer.supervise import gang
from tfgpujob_trainer.supervise.commands import Start
from tfgpujob_trainer.supervise.launcher import run
from tfgpujob_trainer.supervise.own_program import OwnProgram, RoundFolders
from tfgpujob_trainer.supervise.pod_end import end_pod
from tfgpujob_trainer.supervise.round_environment import in_round


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns the pod's exit code, which is the program's where that is the end."""
    command = sys.argv[1:] if arguments is None else arguments
    last_lines: Sequence[str] = ()
    try:
        env = own_program.environment(os.environ)
        _check(command)
        outcome, last_lines = _run(command, env)
    except KeyboardInterrupt:  # before the launcher listens to signals
        outcome = Outcome(code=ExitCode.STOPPED, cause="Stopped", message="stopped by ^C before the program began")
    except TrainerError as error:
        outcome = error.outcome()
    except (OSError, RuntimeError) as error:  # this process may be refused a thread, a process or a folder
        outcome = classify(error, has_peers=False)
    return end_pod(outcome, last_lines)


def _check(command: Sequence[str]) -> None:
    if not command:
        raise ConfigError("there is no program to run", "tfgpu-supervise PROGRAM [ARGUMENT…]")
    if shutil.which(command[0]) is None:
        raise ConfigError(f"there is no program {command[0]}", "correct the container's command")


def _run(command: Sequence[str], env: Environment) -> tuple[Outcome, Sequence[str]]:
    member, status = gang.member(env, 1), RunStatus()
    requests, theirs = ResizeRequests.pair() if member.gang() is not None else (None, None)
    if env.progress_port:
        # Here, and not in the program: it is answered between two rounds too, whatever the program knows of it.
        port, token = env.progress_port, env.progress_token
        serve(status, port, in_pod=env.in_pod, say=say, token=token, resizes=theirs)
    with RoundFolders() as folders:

        def start(now: Start) -> list[OwnProgram]:
            own = in_round(os.environ, now, 1, None)
            folder = folders.begin(now.round, own.get("TF_CONFIG"))
            told = {
                environment.ROUND: str(now.round),
                **own,
                own_program.ROUND_FOLDER: str(folder),
                "TFGPU_PROGRESS_PORT": "0",
            }
            status.beat()
            status.update(phase=STARTING, inPlaceRestarts=now.restarts)
            return [OwnProgram(command, told, folder, status, requests)]

        return run(start, member, joins=env.joins)


if __name__ == "__main__":
    sys.exit(main())
