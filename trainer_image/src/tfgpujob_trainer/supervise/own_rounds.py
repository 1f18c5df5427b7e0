"""Runs a user's own program, and restarts it in its pod. Does not import TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tfgpujob_contract.phases import STARTING
from tfgpujob_contract.variables import LocalVariable
from tfgpujob_trainer.contract import environment, own_program
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.reporting.progress_endpoint import serve
from tfgpujob_trainer.reporting.resize_requests import ResizeRequests
from tfgpujob_trainer.reporting.run_status import RunStatus
from tfgpujob_trainer.supervise import gang
from tfgpujob_trainer.supervise.commands import Start
from tfgpujob_trainer.supervise.gang import in_round
from tfgpujob_trainer.supervise.launcher import run
from tfgpujob_trainer.supervise.own_program import OwnProgram, RoundFolders


def run_in_rounds(
    command: Sequence[str], env: Environment, *, heeds_stops: bool = True
) -> tuple[Outcome, Sequence[str]]:
    """The final outcome of the program, and the last lines that it printed. `heeds_stops`: see OwnProgram."""
    member, status = gang.member(env, 1), RunStatus()
    requests, theirs = ResizeRequests.pair() if member.gang() is not None else (None, None)
    if env.progress_port:
        # Served here, and not by the program, so that it is answered between two rounds too.
        port, token = env.progress_port, env.progress_token
        serve(status, port, in_pod=env.in_pod, token=token, resizes=theirs)
    with RoundFolders() as folders:

        def start(now: Start) -> list[OwnProgram]:
            own = in_round(os.environ, now, 1, None)
            folder = folders.begin(now.round, own.get("TF_CONFIG"))
            told = {
                environment.ROUND: str(now.round),
                **own,
                own_program.ROUND_FOLDER: str(folder),
                LocalVariable.PROGRESS_PORT: "0",
            }
            status.beat()
            status.update(phase=STARTING, inPlaceRestarts=now.restarts)
            return [OwnProgram(command, told, folder, status, requests, heeds_stops=heeds_stops)]

        return run(start, member, joins=env.joins)
