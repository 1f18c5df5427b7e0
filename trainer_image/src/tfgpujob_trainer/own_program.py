"""`tfgpu-supervise PROGRAM [ARGUMENT…]`: runs a user's own program, and restarts it in its pod.

It is for such a program what `tfgpu-train` is for the bundled trainer. Does not import TensorFlow.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.contract import own_program
from tfgpujob_trainer.contract.exits import ConfigError, Outcome, TrainerError, classify
from tfgpujob_trainer.contract.temporary_folder import check_temporary_folder
from tfgpujob_trainer.supervise.own_rounds import run_in_rounds
from tfgpujob_trainer.supervise.pod_end import end_pod


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns the pod's exit code, which is the program's if that ends the pod."""
    command = sys.argv[1:] if arguments is None else arguments
    last_lines: Sequence[str] = ()
    try:
        check_temporary_folder()
        env = own_program.environment(os.environ)
        _check(command)
        outcome, last_lines = run_in_rounds(command, env)
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


if __name__ == "__main__":
    sys.exit(main())
