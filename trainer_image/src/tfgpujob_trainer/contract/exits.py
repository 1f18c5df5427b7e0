"""How a run ends: the exit code of each exception, and the one JSON object that explains an exit.

TensorFlow itself exits with 1 for nearly everything, so the mapping from exceptions is made here.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import sysconfig
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.limits import Limit, recognise
from tfgpujob_trainer.machine.limits import SHARED_MEMORY_FIX, address_space, explain, in_bytes
from tfgpujob_trainer.machine.usage import Usage, measure, shared_memory

TERMINATION_LOG_BYTES = 4096
"""Kubernetes keeps this much of a container's termination message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a process ended: its exit code, the cause in one word, a line for people, and the fix.

    `summary` is set on success: what was trained, how well, where it is.
    """

    code: int
    cause: str
    message: str
    fix: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)
    in_place_restarts: int = 0
    """How often the pod had restarted its processes before."""
    ledger: Mapping[str, Any] = field(default_factory=dict)
    """What the pod's time was spent on: Ledger.report."""

    def line(self) -> str:
        """The one line that a person reads."""
        return f"{self.message} ({self.fix})" if self.fix else self.message


class TrainerError(Exception):
    """An end that the trainer decides on, with its exit code and fix."""

    code = ExitCode.FAILED
    cause = "Failed"

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix

    def outcome(self) -> Outcome:
        """This error as the end of the process."""
        return Outcome(code=self.code, cause=self.cause, message=str(self), fix=self.fix)


class ConfigError(TrainerError):
    """The configuration, or the user's module, requests something impossible."""

    code = ExitCode.BAD_CONFIG
    cause = "BadConfig"
    _keras_call_info_injected = True  # so that Keras re-raises it unchanged from a layer


class FencedError(TrainerError):
    """A newer attempt owns the checkpoint directory: this process must not write."""

    code = ExitCode.FENCED
    cause = "Fenced"


class StoppedError(TrainerError):
    """A worker received SIGTERM; all workers stopped at one step and saved."""

    code = ExitCode.STOPPED
    cause = "Stopped"


class PeerLostError(TrainerError):
    """Another task does not answer. If its node is lost, its connections stay open and silent."""

    code = ExitCode.PEER_FAILURE
    cause = "PeerFailure"


class NotFetchedError(TrainerError):
    """What the program needs could not be fetched from another machine, which may answer next time."""

    code = ExitCode.NOT_FETCHED
    cause = "NotFetched"


class PeersMissingError(TrainerError):
    """The pods of other tasks did not start in time. It is no failure of this one."""

    code = ExitCode.PEERS_MISSING
    cause = "PeersMissing"


class ExitedError(TrainerError):
    """The script has ended itself, with an exit code other than 0."""

    cause = "Exception"


class NotFiniteError(TrainerError):
    """The loss became NaN or infinite."""

    cause = "LossNotFinite"

    @classmethod
    def of_step(cls, step: int, where: str = "") -> NotFiniteError:
        """The loss of a step."""
        fix = "lower the learning rate, clip the gradients, or look for bad values in the data"
        return cls(f"the loss of step {step} is NaN or infinite{where}", fix)


_PEER_ERRORS = {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError"}
_PEER_WORDS = ("Collective ops is aborted", "ncclRemoteError", "ncclSystemError", "coordination service")
_NCCL_REFUSES = re.compile("nccl.{0,20}invalid usage|ncclInvalidUsage", re.IGNORECASE)
_NCCL_FIX = "give each process a GPU of its own, or set the communication to RING; NCCL_DEBUG=WARN has NCCL say more"
_MEMORY_ERRORS = {"ResourceExhaustedError", "MemoryError"}
_IDLE = ("/threading.py", "/concurrent/futures/thread.py", "/selectors.py", " in _read_ahead")
"""Where an idle thread is."""
_MEMORY_FIX = "lower trainer.globalBatchSize, or ask for more memory"
_DISK = ("No space left on device", "Disk quota exceeded")
_DISK_FIX = "ask for a larger volume, or keep fewer checkpoints with trainer.checkpoint.keep"
_TEMPORARY_FIX = "ask for more ephemeral-storage, or mount a volume there; checkpoints are written elsewhere"
_FULL = 0.99
_REMOTE = "from remote target"
_PACKAGE_FIX = (
    "send your own module with the code (tfgpu submit --code .); "
    "name a package in trainer.requirements (--requirements FILE), or put it into spec.image"
)
_HOROVOD_FIX = "remove what is Horovod's: fit() trains on all workers without it"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_NO_NEWS = ("Exception encountered when calling", "Graph execution error", "Detected at node", "File ", "node ")
"""Beginnings of lines in which Keras and TensorFlow report where an error happened, before the error itself."""
_PLACE = re.compile(r"\{\{function_node [^{}]*+\}\} |(?<!\s)\s*+\[Op:\w+\]")
"""Where in a graph an operation failed."""
_MACHINERY = (str(Path(__file__).parents[1]), "<frozen importlib", "<frozen runpy", "/importlib/")
_INSTALLED = re.compile(rf"{re.escape(_MACHINERY[0])}|{re.escape(sysconfig.get_path('stdlib'))}|/(site|dist)-packages/")
"""Files that are not the user's."""
_DEFINED_IN_MACHINERY = re.compile(rf'^  File "(?:{re.escape(_MACHINERY[0])}|<frozen runpy)[^\n]*+\n\n', re.MULTILINE)


def classify(error: BaseException, *, has_peers: bool) -> Outcome:
    """Map an exception to the end of the process.

    TensorFlow's classes are recognised by name, so that this module needs no TensorFlow.
    A communication error can come from a peer only where there are peers.
    """
    if isinstance(error, TrainerError):
        return error.outcome()
    names = {cls.__name__ for cls in type(error).__mro__}
    text = first_line(str(error)) or type(error).__name__
    limit = _limit(error)
    if limit is not None:
        # An error of another task is about what that task uses.
        usage = Usage() if _REMOTE in str(error) else measure(os.getpid())
        return limit_reached(limit, f"{type(error).__name__}: {text}{users_place(error)}", usage)
    if any(words in str(error) for words in _DISK):
        return Outcome(code=ExitCode.FAILED, cause="DiskFull", message=f"the disk is full: {text}", fix=_disk_fix(text))
    if names & _MEMORY_ERRORS or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return out_of_memory(text, measure(os.getpid()))
    # No peer is lost then: it would end so each time.
    refused = "OpError" in names and _NCCL_REFUSES.search(str(error)) is not None
    if (
        has_peers
        and not refused
        and "OpError" in names
        and (names & _PEER_ERRORS or any(w in str(error) for w in _PEER_WORDS))
    ):
        return Outcome(
            code=ExitCode.PEER_FAILURE,
            cause="PeerFailure",
            message=f"a peer failed or stopped answering: {text}",
            fix="see the other workers' last lines; this end is retried",
        )
    if isinstance(error, ModuleNotFoundError):
        package, dot, _ = (error.name or "").partition(".")
        known = _HOROVOD_FIX if package == "horovod" else _PACKAGE_FIX
        known = f"{package} is there, in another version perhaps: correct the import" if dot else known
    else:
        known = _NCCL_FIX if refused else _absent_fix(error)
    fix = known or "; ".join(getattr(error, "__notes__", ()))
    message = f"{type(error).__name__}: {text}{users_place(error)}"
    return Outcome(code=ExitCode.FAILED, cause="Exception", message=message, fix=fix)


def limit_reached(limit: Limit, text: str, usage: Usage, *, refused: bool = False, seconds_ago: float = 0.0) -> Outcome:
    """The end of a process that reached a limit of the machine: permanent, because a new start would reach it again.

    The supervisor knows whether the process got past its start, and then makes it a retry. `usage` was measured
    `seconds_ago`; `refused`: the pids controller has counted a refusal since the start.
    """
    found = explain(limit, text, usage, refused=refused)
    # A file that is too large stays too large after a restart.
    permanent = ExitCode.FAILED if limit is Limit.FILE_SIZE else ExitCode.LIMIT_AT_START
    when = f" (figures of {seconds_ago:.1f} s before the end)" if 0.1 <= seconds_ago < math.inf else ""
    return Outcome(
        code=ExitCode.LIMIT_REACHED if found.shared else permanent,
        cause="LimitReached",
        message=found.message + when,
        fix=found.fix,
    )


def out_of_memory(text: str, usage: Usage) -> Outcome:
    """The end of a process that was refused memory, by a GPU or by the machine."""
    found = address_space(usage) if "GPU" not in text else None
    return Outcome(
        code=ExitCode.OUT_OF_MEMORY,
        cause="OutOfMemory",
        message=f"out of memory: {f'{found.message}: ' if found else ''}{text}",
        fix=found.fix if found else _MEMORY_FIX,
    )


def _absent_fix(error: BaseException) -> str:
    """The fix for a missing variable, or file that a script expects beside itself: a cluster has only what was sent."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, KeyError) and frames and frames[-1].f_locals.get("self") is os.environ:
        return f"set the variable; in a cluster: tfgpu submit --env {error.args[0]}=VALUE"
    name = error.filename if isinstance(error, FileNotFoundError) else None
    if not isinstance(name, str) or not (parts := Path(name).parts) or parts[0] in {"/", ".."}:
        return ""
    return f"in a cluster, send it with the code: tfgpu submit --with {parts[0]}; or give its path in a volume"


def _disk_fix(text: str) -> str:
    if f"{tempfile.gettempdir()}/" in text:
        return _TEMPORARY_FIX
    shared = shared_memory()
    if "/" in text or shared is None:
        return _DISK_FIX
    return f"{_DISK_FIX}; if it was /dev/shm, which is {in_bytes(shared.limit)}, {SHARED_MEMORY_FIX}"


def _limit(error: BaseException) -> Limit | None:
    """The limit of the machine that an exception is about."""
    text, names = str(error), {cls.__name__ for cls in type(error).__mro__}
    if not names & {"OSError", "OpError", "RuntimeError"}:
        return None
    if isinstance(error, BlockingIOError):
        # Sockets raise it too: only the traceback shows the call.
        text = "".join(traceback.format_exception(error))
    limit = recognise(text)
    if limit is Limit.FILE_SIZE and "OpError" not in names and getattr(error, "errno", None) != errno.EFBIG:
        return None  # a server's answer, say
    if limit is None and _DISK[0] in text and "/" not in text:
        # Semaphores and shared arrays name no file.
        shared = shared_memory()
        return Limit.SHARED_MEMORY if shared is not None and shared.share > _FULL else None
    return limit


def first_line(text: str) -> str:
    """The first line that names the error, else the first that is not empty; at most 500 characters."""
    lines = [line.strip() for line in _PLACE.sub("", _STYLE.sub("", text)).splitlines() if line.strip()]
    number = next((i for i, line in enumerate(lines) if not line.startswith(_NO_NEWS)), 0)
    return _to_its_end(lines[number:])[:500]


def _to_its_end(lines: Sequence[str]) -> str:
    """The first line; if a bracket is open in it, as in a printed value, with `…` and the line that closes it."""
    depth = 0
    for number, line in enumerate(lines):
        depth += sum(line.count(mark) for mark in "([{") - sum(line.count(mark) for mark in ")]}")
        if depth <= 0:
            return line if number == 0 else f"{lines[0]}…{line}"
    return lines[0] if lines else ""


def users_place(error: BaseException) -> str:
    """`, at train.py:5`: the innermost line of the user's code in the traceback; empty if there is none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(name, line) for name, line in frames if not name.startswith("<") and not _INSTALLED.search(name)]
    return f", at {Path(own[-1][0]).name}:{own[-1][1]}" if own else ""


def users_traceback(error: BaseException) -> str:
    """Python's traceback of an exception, from the first frame outside the trainer on."""
    frames = error.__traceback__
    while frames is not None and any(part in frames.tb_frame.f_code.co_filename for part in _MACHINERY):
        frames = frames.tb_next
    if frames is None and not isinstance(error, SyntaxError):  # it names its file by itself
        frames = error.__traceback__
    text = "".join(traceback.format_exception(type(error), error, frames))
    return _DEFINED_IN_MACHINERY.sub("", text)


def without_idle_threads(lines: Sequence[str]) -> list[str]:
    """The lines without the stacks of idle threads, which would leave no room for the one that hangs."""
    stacks: list[list[str]] = [[]]
    for line in lines:
        if line.startswith(("Thread 0x", "Current thread 0x")):
            stacks.append([])
        stacks[-1].append(line)
    busy = [stack for stack in stacks[1:] if not any(idle in stack[1] for idle in _IDLE if len(stack) > 1)]
    return [line for stack in [stacks[0], *busy] for line in stack]


def termination_log(outcome: Outcome, last_lines: Sequence[str]) -> str:
    """`outcome` as one JSON object of at most 4,096 bytes, with as many of the last lines as fit."""
    record: dict[str, Any] = {
        "code": int(outcome.code),
        "cause": outcome.cause,
        "message": outcome.message[:1000],
    }
    if outcome.fix:
        record["fix"] = outcome.fix[:500]
    if outcome.in_place_restarts:
        record["inPlaceRestarts"] = outcome.in_place_restarts
    if outcome.ledger:
        record["ledger"] = dict(outcome.ledger)
    if outcome.summary:
        record["summary"] = dict(outcome.summary)
    # Kubernetes would cut it off, and then it is not JSON any more.
    while not _fits(record) and record["message"]:
        record["message"] = record["message"][: len(record["message"]) // 2]
    kept: list[str] = []
    for line in reversed(without_idle_threads(last_lines)):
        candidate = {**record, "lastLines": [line[:400], *kept]}
        if not _fits(candidate):
            break
        kept.insert(0, line[:400])
    if kept:
        record["lastLines"] = kept
    return json.dumps(record, ensure_ascii=False)


def _fits(record: Mapping[str, Any]) -> bool:
    return len(json.dumps(record, ensure_ascii=False).encode()) <= TERMINATION_LOG_BYTES
