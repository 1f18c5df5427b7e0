"""A user's own program in rounds: a process, a TF_CONFIG and a folder for each round. Does not import TensorFlow.

It is asked to stop by SIGTERM, but only after it has declared that this stops it after a step: by the library
(own_loop/), or by a file in the folder of its round. Its exit code is the result: 0 for done, 143 for stopped after a
saved step, any other for a failure.
"""

from __future__ import annotations

import dataclasses
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.contract import own_program
from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.reporting.resize_requests import ResizeRequests
from tfgpujob_trainer.reporting.run_status import RunStatus
from tfgpujob_trainer.supervise import own_process
from tfgpujob_trainer.supervise.supervisor import EXIT_SECONDS, Supervisor

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of its own in there)
"""Each pod has it, and it is writable even if the root file system is read-only."""
_DONE = Outcome(code=ExitCode.DONE, cause="Completed", message="the program has ended")
_STOPPED = Outcome(code=ExitCode.STOPPED, cause="Stopped", message="the program has stopped after a step")
_UNHEEDED = Outcome(
    code=ExitCode.STOPPED,
    cause="Stopped",
    message="the program was ended at once: it does nothing when it is asked to stop",
    fix="import tfgpujob_trainer for should_stop() and checkpoint(), to continue from where it was",
)
_ENDED = Outcome(code=ExitCode.STOPPED, cause="Stopped", message="the program was ended by the SIGTERM that stops it")
"""Python handles no signal while it exits, and another worker may have had the program stop before."""


class RoundFolders:
    """A folder for each round; that of the round before is removed, so a program reads only files of its round."""

    def __init__(self) -> None:
        parent = _IN_MEMORY if _IN_MEMORY.is_dir() else None
        self._parent = Path(tempfile.mkdtemp(prefix="tfgpu-rounds-", dir=parent))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        shutil.rmtree(self._parent, ignore_errors=True)

    def begin(self, round_: int, tf_config: str | None) -> Path:
        """The folder of a round that is about to start, with its TF_CONFIG."""
        for earlier in self._parent.iterdir():
            shutil.rmtree(earlier, ignore_errors=True)
        folder = self._parent / str(round_)
        folder.mkdir()
        if tf_config:
            (folder / own_program.TF_CONFIG_FILE).write_text(tf_config)
        return folder


class OwnProgram(Supervisor):
    """Its process in one round."""

    _read = staticmethod(own_program.environment)

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        status: RunStatus,
        requests: ResizeRequests | None,
        *,
        heeds_stops: bool = True,
    ) -> None:
        """`status` is the pod's report, and `requests` are requests to it, over all rounds. `heeds_stops`: the program
        may handle SIGTERM, which TensorFlow swallows otherwise.
        """
        super().__init__(None, command, environment, own_process.spawn)
        self._heeds_stops = heeds_stops
        self._stoppable_file, self._status, self._requests = folder / own_program.STOPPABLE_FILE, status, requests

    @property
    def explained(self) -> bool:
        """True also for a program that stopped on request."""
        return super().explained or self._has_stopped(self._child.poll())

    def start(self) -> None:
        """Start the process."""
        super().start()
        self.resizes = self._requests

    def poll(self) -> Outcome | None:
        """How the process ended; None while it runs."""
        if not self._stoppable and self._stoppable_file.exists():
            self._heard({"stoppable": True})
        return super().poll()

    def signal(self, number: int) -> None:
        """Pass SIGTERM or SIGINT on, as to any program; a second SIGINT ends it at once."""
        self._signals += 1
        if not self._heeds_stops or (self._signals > 1 and number == signal.SIGINT):
            self.kill()
        else:
            self._child.send_signal(signal.SIGTERM)

    def _hang_up(self) -> None:
        """Keep the server: the next round's process uses it too."""

    def _forced_end(self) -> Outcome | None:
        """None: the program has no deadlines of the trainer's."""
        if self._ended and time.monotonic() - self._ended > EXIT_SECONDS:
            self.kill()
        return None

    def _heard(self, record: Mapping[str, Any]) -> None:
        super()._heard(record)
        if "status" in record:
            self._status.beat()
            self._status.update(**record["status"])
        if "point" in record:
            self._status.add_point(*record["point"])

    def _unexplained(self, returncode: int) -> Outcome:
        if returncode == ExitCode.DONE:
            return _DONE
        if self._has_stopped(returncode):
            self.progressed = True
            return _STOPPED if returncode == ExitCode.STOPPED else _ENDED
        if returncode == -signal.SIGKILL and self._signals and not self._heeds_stops:
            return _UNHEEDED
        if returncode < 0:
            return super()._unexplained(returncode)
        if (reached := self._at_a_limit(returncode)) is not None:
            return dataclasses.replace(reached, code=returncode)
        message = f"the program has ended with exit code {returncode}"
        return Outcome(code=returncode, cause="Exception", message=message)

    def _has_stopped(self, returncode: int | None) -> bool:
        by_signal = returncode == -signal.SIGTERM and self._drained and self._stoppable and not self._signals
        return returncode == ExitCode.STOPPED or by_signal
