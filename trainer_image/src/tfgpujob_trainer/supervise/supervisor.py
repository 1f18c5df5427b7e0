"""The parent process: runs the training process, watches it, and explains its end. Does not import TensorFlow.

It is a separate process because TensorFlow may abort, hang in C++ or be killed for memory, and then no handler or
thread inside it can explain that. Its output is read here, so that the last lines are known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Any, TextIO

from tfgpujob_contract import phases
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.goodput import DETECTED, ENDED, IMPORTING, LOST, OTHER, RESTARTING, STARTED
from tfgpujob_contract.limits import Limit
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.contract.environment import read
from tfgpujob_trainer.contract.exits import Outcome, limit_reached, out_of_memory
from tfgpujob_trainer.machine import limits
from tfgpujob_trainer.machine.usage import oom_kills, shared_memory
from tfgpujob_trainer.reporting.heartbeat import LEDGER_VARIABLE
from tfgpujob_trainer.reporting.ledger import Ledger
from tfgpujob_trainer.reporting.resize_requests import ResizeRequests
from tfgpujob_trainer.supervise import processes
from tfgpujob_trainer.supervise.processes import Spawn, Streams, is_noise
from tfgpujob_trainer.supervise.usage_log import UsageLog
from tfgpujob_trainer.supervise.watchdog import Watchdog

_VAGUE = ("cannot listen on the port", "ncclSystemError", "unhandled system error")
"""Messages that may be caused by a limit of the machine, which only the log shows."""
_NEARLY_FULL = 0.9
_HELD = "leaked shared_memory objects"
"""What Python prints about a process that died with shared memory, which has been removed by then."""
EXIT_SECONDS = 10.0
"""How long a process that has explained its end may take to exit."""
_STACKS_SECONDS = 1.0
OUTSIDE_SECONDS = 10.0
"""How long a process that was asked to stop may stay outside of its steps, where it has nothing to save."""
_OUTSIDE = (phases.STARTING, phases.SCRIPT)


class Supervisor:
    """One training process of a pod from its start to its end."""

    _read = staticmethod(read)

    def __init__(
        self,
        config: TrainerConfig | None,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        spawn: Spawn = processes.fresh,
        memory: MemoryFile | None = None,
        *,
        leads: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        """`environment` is the process's own, `ledger` the pod's; `leads`: resizes and restarts of other pods are
        reported through it. Without `config` the process has no deadlines.

        Raises ConfigError with the name of an invalid variable.
        """
        self._config, self._arguments, self._environment = config, arguments, environment
        self._spawn, self._memory, self._leads = spawn, memory, leads
        self._ledger, self._told_to_end = ledger, 0
        self.resizes: ResizeRequests | None = None
        """Requests by PUT /workers and GET /progress, while it runs."""
        task = self._read(environment)
        self.name, self._has_peers = task.name, task.has_peers
        self._watchdog: Watchdog | None = None
        self.mark = ""
        """Prefix of its lines if several processes print."""
        self.last_lines: deque[str] = deque(maxlen=400)
        self._stoppable = False
        self._outcome: Outcome | None = None
        self._ended = 0.0
        self._signals = 0
        self._phase, self._outside_since = phases.STARTING, 0.0
        """Since when it was asked to stop and does no steps; 0 if that is not so."""
        self._drained = False
        self._oom_kills = oom_kills()
        self._began = False
        """It has imported its modules."""
        self._trains = False
        """Its start-up is complete."""
        self.progressed = False
        """It has completed a step or predicted a part; as a worker under ParameterServer, served a batch."""

    @property
    def explained(self) -> bool:
        """True if the process has reported how it ends."""
        return self._outcome is not None

    def start(self) -> None:
        """Start the process."""
        limits = None if self._config is None else self._config.watchdog
        if limits is not None:
            startup, step = limits.startup_seconds, limits.step_seconds
            self._watchdog = Watchdog(startup, step, time.monotonic(), has_peers=self._has_peers)
        (output, stdout), (errors, stderr), (beats, heartbeat) = os.pipe(), os.pipe(), os.pipe()
        self.resizes, theirs = ResizeRequests.pair() if self._leads else (None, None)
        try:
            memory = None if self._memory is None else self._memory.descriptor
            resizes = None if theirs is None else theirs.descriptor
            streams = Streams(stdout=stdout, stderr=stderr, heartbeat=heartbeat, memory=memory, resizes=resizes)
            self._child = self._spawn(self._arguments, self._with_ledger(), streams)
        finally:
            for descriptor in (stdout, stderr, heartbeat):
                os.close(descriptor)
            if theirs is not None:
                theirs.close()
        self._usage = UsageLog(self._child.pid, self._warn)
        self._readers = [
            threading.Thread(target=self._pass_on, args=(_text(output), sys.stdout), daemon=True),
            threading.Thread(target=self._pass_on, args=(_text(errors), sys.stderr), daemon=True),
            threading.Thread(target=self._listen, args=(_text(beats),), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def wait(self, seconds: float) -> None:
        """Wait for the end, at most this long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=seconds)

    def poll(self) -> Outcome | None:
        """How the process ended; None while it runs. Ends it if it must be ended."""
        forced = None
        if self._child.poll() is None:
            self._usage.look(time.monotonic())
            forced = self._forced_end()
            if forced is None:
                return None
            self.kill()
            self._child.wait()
        for reader in self._readers:
            reader.join(timeout=5)
        self._hang_up()
        outcome = self._by_phase(forced or self._explained() or self._unexplained(self._child.returncode))
        self._close_ledger(well=outcome.code in (ExitCode.DONE, ExitCode.STOPPED))
        return outcome

    def _hang_up(self) -> None:
        """Stop serving requests for another number of workers."""
        if self.resizes is not None:
            self.resizes.close()

    def _forced_end(self) -> Outcome | None:
        """Why a running process must be ended; None if it need not be."""
        if self._signals and not self._stoppable:
            return Outcome(code=ExitCode.STOPPED, cause="Stopped", message="stopped by a signal before training began")
        if self._stays_outside(time.monotonic()):
            said = f"stopped {OUTSIDE_SECONDS:g} s after a signal, outside of fit(), where nothing is to be saved"
            return Outcome(code=ExitCode.STOPPED, cause="Stopped", message=said)
        if self._ended and time.monotonic() - self._ended > EXIT_SECONDS:
            self.kill()
        overdue = None if self._watchdog is None else self._watchdog.overdue(time.monotonic())
        if self._outcome is None and overdue is not None:
            self._show_stacks()
            return overdue
        return None

    def _stays_outside(self, now: float) -> bool:
        """True if it was asked to stop, and has done no step since for too long."""
        if not self._signals or self._phase not in _OUTSIDE:
            self._outside_since = 0.0
        elif not self._outside_since:
            self._outside_since = now
            self._warn(f"asked to stop outside of fit(): it ends after a step, or in {OUTSIDE_SECONDS:g} s without one")
        return 0 < self._outside_since < now - OUTSIDE_SECONDS

    def kill(self) -> None:
        """End the process at once."""
        self._told_to_end = self._told_to_end or time.monotonic_ns()
        self._child.kill()

    def signal(self, number: int) -> None:
        """Pass SIGTERM or SIGINT on as a request to stop; a second SIGINT ends the process at once."""
        self._signals += 1
        if self._signals > 1 and number == signal.SIGINT:
            self._child.kill()
        elif self._stoppable:
            self._child.send_signal(signal.SIGTERM)

    def drain(self) -> None:
        """Make the process stop after a step, as soon as it has done one."""
        self._drained = True
        if self._stoppable:
            self._child.send_signal(signal.SIGTERM)

    def _show_stacks(self) -> None:
        """Make the process print the stacks of its threads."""
        self._child.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=_STACKS_SECONDS)

    def _pass_on(self, stream: IO[str], target: TextIO) -> None:
        for line in stream:
            if is_noise(line):
                continue
            target.write(self.mark + line)
            target.flush()
            if not line.startswith('{"tfgpu"'):
                self.last_lines.append(line.rstrip("\n"))

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            self._heard(json.loads(line))

    def _heard(self, record: Mapping[str, Any]) -> None:
        if "part" in record and self._ledger is not None:
            self._ledger.spent(record["part"], record["at"], record.get("aside"))
            self._ledger.stepped(record.get("step", 0))
            if "mark" in record:
                self._ledger.mark(record["mark"], record["at"])
        if "phase" in record:
            self._began, self._phase = True, record["phase"]
            self._trains |= record["phase"] not in (phases.STARTING, phases.CACHING)
            if self._watchdog is not None:
                self._watchdog.beat(record["phase"], record["step"], time.monotonic())
            self.progressed |= record["phase"] in (phases.TRAINING, phases.PREDICTING)
            self.progressed |= record["phase"] == phases.SERVING and record["step"] > 0
        if "alive" in record and self._watchdog is not None:
            self._watchdog.alive(time.monotonic())
        if "stoppable" in record:
            self._stoppable = True
            if self._signals or self._drained:
                self._child.send_signal(signal.SIGTERM)
        if "outcome" in record:
            self._outcome = Outcome(**record["outcome"])
            self._ended = time.monotonic()

    def _with_ledger(self) -> Mapping[str, str]:
        """The process's environment, with which it continues the pod's ledger."""
        if self._ledger is None:
            return self._environment
        now = time.monotonic_ns()
        self._ledger.spent(RESTARTING if self._ledger.marks else IMPORTING, now)
        if STARTED in self._ledger.marks:
            # The process before has not failed: those are its own.
            self._ledger.marks = {}
        self._ledger.mark(STARTED, now)
        return {**self._environment, LEDGER_VARIABLE: self._ledger.to_json()}

    def _close_ledger(self, *, well: bool) -> None:
        """The process has ended; its ledger entries are complete."""
        if self._ledger is None:
            return
        now = time.monotonic_ns()
        if not well:
            self._ledger.failed()
            # Between the decision to end it and its end, it may have sent another heartbeat.
            self._ledger.mark(DETECTED, max(self._told_to_end or now, self._ledger.since))
            self._ledger.mark(ENDED, now)
        self._ledger.spent(OTHER if well else LOST, now)

    def _warn(self, text: str) -> None:
        print(f"{self.mark}tfgpu-train: warning: {text}", file=sys.stderr, flush=True)

    def _by_phase(self, outcome: Outcome) -> Outcome:
        """A limit that is reached after start-up is worth a restart, because the checkpoint preserves the progress."""
        if outcome.code == ExitCode.LIMIT_AT_START and self._trains:
            return dataclasses.replace(outcome, code=ExitCode.LIMIT_REACHED)
        return outcome

    def _explained(self) -> Outcome | None:
        """The process's own explanation of its end, unless the log before it is more specific."""
        if self._outcome is not None and any(words in self._outcome.message for words in _VAGUE):
            return self._limit() or self._outcome
        return self._outcome

    def _limit(self) -> Outcome | None:
        """The outcome for a limit of the machine that the last lines mention; None if they mention none."""
        limit, line = limits.recognise_lines(self.last_lines)
        return None if limit is None else self._reached(limit, line)

    def _reached(self, limit: Limit, line: str) -> Outcome:
        ago, refused = self._usage.seconds_ago(time.monotonic()), self._usage.refused()
        return limit_reached(limit, line, self._usage.last, refused=refused, seconds_ago=ago)

    def _at_a_limit(self, returncode: int) -> Outcome | None:
        """The outcome for a limit of the machine that ended the process; None if none did."""
        if returncode == -signal.SIGXFSZ:
            return self._reached(Limit.FILE_SIZE, "ended by SIGXFSZ")
        if returncode in (-signal.SIGABRT, -signal.SIGBUS) or returncode > 0:
            if (reached := self._limit()) is not None:
                return reached
            if line := limits.no_memory(self.last_lines):
                return out_of_memory(line, self._usage.last)
        return self._bus_error() if returncode == -signal.SIGBUS else None

    def _unexplained(self, returncode: int) -> Outcome:
        """The end of a process without an explanation: by its exit status, and possible other causes."""
        if (reached := self._at_a_limit(returncode)) is not None:
            return reached
        if returncode == -signal.SIGKILL and oom_kills() > self._oom_kills:
            return Outcome(
                code=ExitCode.OUT_OF_MEMORY,
                cause="OutOfMemory",
                message="killed by the kernel: the container's memory limit is reached",
                fix="raise the container's memory limit, or make the data smaller",
            )
        if returncode < 0:
            return Outcome(
                code=128 - returncode,
                cause="Killed",
                message=f"the training process was ended by {signal.Signals(-returncode).name}",
            )
        if not self._began:
            last = next((line for line in reversed(self.last_lines) if line.strip()), f"exit code {returncode}")
            return Outcome(
                code=ExitCode.FAILED,
                cause="Exception",
                message=f"the trainer can't be imported: {last.strip()}",
                fix="rename a file of the code that has a module's name, such as keras.py; or correct the image",
            )
        if self._has_peers:
            return Outcome(
                code=ExitCode.PEER_FAILURE,
                cause="PeerFailure",
                message=f"TensorFlow ended the process with code {returncode}, as it does when a peer is lost",
                fix="see the other workers' last lines; this end is retried",
            )
        return Outcome(
            code=ExitCode.FAILED, cause="Exception", message=f"the training process exited with code {returncode}"
        )

    def _bus_error(self) -> Outcome:
        """SIGBUS: a page of a memory-mapped file could not be filled, nearly always in /dev/shm."""
        seen = [self._usage.last.shared_memory, shared_memory()]
        fullest = max((bound for bound in seen if bound is not None), key=lambda bound: bound.share, default=None)
        held = any(_HELD in line for line in self.last_lines)
        if held or (fullest is not None and fullest.share > _NEARLY_FULL):
            return self._reached(Limit.SHARED_MEMORY, "ended by SIGBUS")
        room = limits.explain(Limit.SHARED_MEMORY, "", self._usage.last)
        return Outcome(
            code=128 + signal.SIGBUS,
            cause="Killed",
            message=(
                "the training process was ended by SIGBUS, as when a file that is mapped into memory is cut short or "
                f"finds no room; {room.message.removeprefix('out of shared memory: ')}"
            ),
            fix=f"if it shares memory: {room.fix}",
        )


def _text(descriptor: int) -> IO[str]:
    """The output of a training process; user code may write any bytes."""
    return os.fdopen(descriptor, encoding="utf-8", errors="replace")
