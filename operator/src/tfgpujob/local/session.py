"""A job from its start to its end on this machine: the operator's worker, its signals, and what to say at the end."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import random
import re
import shlex
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from tfgpujob import names
from tfgpujob.api import RunPolicy
from tfgpujob.core.observed.conditions import is_true
from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.core.reconcile import finalize_status, reconcile, report_refusals
from tfgpujob.core.status.builder import StatusBuilder, moment
from tfgpujob.core.status.diagnosis import ACTIONS, Diagnosis
from tfgpujob.exits import CliError, Exit
from tfgpujob.local.cluster import LocalCluster
from tfgpujob.local.folder import RUNS, Folder, shown
from tfgpujob.local.offline import CONFIG
from tfgpujob.local.translate import Here, launch
from tfgpujob.names import Condition, Reason
from tfgpujob.shell.event_recorder import EventRecorder
from tfgpujob.shell.log_format import TextFormatter
from tfgpujob.shell.store import Key, Store
from tfgpujob.shell.worker import Core, Worker
from tfgpujob.shell.workqueue import WorkQueue
from tfgpujob.units import duration

_LEFTOVERS_SECONDS: Final = 10.0
"""What still runs when the job is finished has nothing left to save."""
_FIRST_REVISION: Final = "1"
_HERE: Final = {
    ACTIONS[Diagnosis.EXCEPTION]: "correct the program",
    ACTIONS[Diagnosis.BAD_CONFIG]: "correct spec.trainer as the message says",
    ACTIONS[Diagnosis.HOST_OUT_OF_MEMORY]: "run fewer replicas or a smaller batch: they need more memory than there is",
}
"""Actions to show here for actions that mention pods and new jobs."""
_INSTALL: Final = "pip install it here"
_REQUIRE: Final = f"{_INSTALL}, or name it in trainer.requirements (of a script: --requirements FILE)"
_RUN_HERE: Final = "add --code . to run it in this folder"
_NO_PACKAGE: Final = re.compile(r"ModuleNotFoundError: No module named '(?!horovod)\w+'")
_ROOM: Final = "make room on that disk"
_ERROR: Final = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*(Error|Exception): ")
"""How Python begins the last line of a traceback."""
_ABSENT: Final = re.compile(r"No such file or directory: '([^']+)'")


def new_job(job: Object, before: Object | None) -> Object:
    """The job as an API server would return it: a new one, or the next generation of one that has not finished."""
    metadata = {**job["metadata"], "uid": str(uuid.uuid4()), "generation": 1, "resourceVersion": _FIRST_REVISION}
    # A file that was read from a cluster has these too, and no server takes them.
    job = {key: value for key, value in job.items() if key != "status"}
    metadata.pop("deletionTimestamp", None)
    if before is None or is_true(before, Condition.FINISHED):
        return {**job, "metadata": metadata}
    kept = before["metadata"]
    metadata |= {"uid": kept["uid"], "generation": kept["generation"] + 1, "resourceVersion": kept["resourceVersion"]}
    # Also after a kill: the replicas died with it, so this is a resumption, perhaps of an edited job.
    return {**job, "metadata": metadata, "status": interrupted(before)["status"]}


def interrupted(job: Object) -> Object:
    """A job that has not finished, after the tool that ran it has ended."""
    builder = StatusBuilder(job, _now())
    builder.set(Condition.SUSPENDED, True, Reason.SUSPENDED, "tfgpu was ended.")
    return {**job, "status": builder.build()}


class Screen(Protocol):
    """Shows the run to the user."""

    def said(self, replica: str, line: str) -> None:
        """A line of a replica's output."""

    def say(self, text: str, colour: str | None = None) -> None:
        """A line of this tool."""

    def close(self) -> None:
        """No more progress."""


class Session:
    """Runs one job. `again` is the command that continues it."""

    def __init__(self, job: Object, here: Here, screen: Screen, again: str) -> None:
        self._folder: Folder = here.folder
        self._screen, self._again = screen, again
        self._key = Key(job["metadata"]["namespace"], job["metadata"]["name"])
        self._store, self._queue = Store(), WorkQueue(random.random)
        self._something = asyncio.Event()
        self._signals: list[signal.Signals] = []
        self._cluster = LocalCluster(
            job,
            launch=lambda pod: launch(pod, here),
            changed=self._changed,
            gone=self._gone,
            on_line=lambda pod, line: screen.said(replica_of(pod), line),
            on_event=self._on_event,
            on_trouble=lambda text: screen.say(text, "yellow"),
        )
        self._unkept = False
        """True if the last change of the job could not be written to the folder."""

    async def run(self) -> Exit:
        """Run until the job is finished, or is stopped and has saved. Raises CliError if it fails."""
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        self._log_to_file()
        self._changed(Kind.JOB, self._cluster.job)
        recorder = EventRecorder(self._cluster, _now)
        # Without the tokens that are made with a key, the processes of a gang could not agree on a round.
        config = dataclasses.replace(CONFIG, progress_key=os.urandom(32))
        core = Core(reconcile, report_refusals, finalize_status, config)
        worker = Worker(
            self._cluster, self._store, self._queue, core=core, now=_now, recorder=recorder, observe=lambda *_: None
        )
        working = [asyncio.create_task(work()) for work in (worker.run, recorder.run)]
        try:
            await self._settled()
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            self._cluster.kill()
            self._screen.close()
        return self._end(time.monotonic() - began)

    async def _settled(self) -> None:
        """Wait until the job is finished or stopped, and no process is left."""
        while not (finished := is_true(self._cluster.job, Condition.FINISHED)) and not self._has_stopped():
            await self._next()
        if finished:
            for process in self._cluster.processes.values():
                process.stop()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEFTOVERS_SECONDS):
                    while self._cluster.processes:
                        await self._next()

    def _has_stopped(self) -> bool:
        # A run that is resumed is Suspended too, until its first reconciliation.
        stopping = self._signals and is_true(self._cluster.job, Condition.SUSPENDED)
        return bool(stopping or len(self._signals) > 1) and not self._cluster.processes

    async def _next(self) -> None:
        self._something.clear()
        await self._something.wait()

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._something.set()
        if len(self._signals) > 1:
            self._cluster.kill()
            return
        self._screen.close()
        self._screen.say("stopping: saving a checkpoint (^C again: end at once, without saving)", "yellow")
        # As a user would in a cluster, so the core decides the order in which replicas stop.
        self._cluster.edit(lambda spec: spec.update(runPolicy={**spec.get("runPolicy", {}), "suspend": True}))

    def _changed(self, kind: Kind, obj: Object) -> None:
        if kind is Kind.JOB:
            self._keep(obj)
        self._store.put(kind, obj)
        self._wake()

    def _keep(self, job: Object) -> None:
        """Write the job to the folder. If the disk is full, the job continues in memory, and is written with its next
        change.
        """
        try:
            self._folder.keep(job)
        except OSError as error:
            if not self._unkept:
                what = "the state of the run is not saved, so --resume would continue from an earlier one"
                self._screen.say(f"{self._folder.shown()}: {error.strerror}; {what}", "yellow")
            self._unkept = True
        else:
            self._unkept = False

    def _on_event(self, event: Object) -> None:
        """Report events about problems, and the end of a problem."""
        if event["type"] == "Warning" and not is_true(self._cluster.job, Condition.FINISHED):
            self._screen.say(f"{event['message']}{when_again(self._cluster.job, _now())}", "yellow")

    def _gone(self, kind: Kind, obj: Object) -> None:
        metadata = obj["metadata"]
        self._store.remove(kind, metadata["namespace"], metadata["name"], metadata["uid"])
        self._wake()

    def _wake(self) -> None:
        self._queue.add(self._key)
        self._something.set()

    def _log_to_file(self) -> None:
        """The worker's log goes to logs/tfgpu.log; its errors also to the screen."""
        path = self._folder.logs / "tfgpu.log"
        to_file, to_screen = _PatientHandler(path), logging.StreamHandler()
        to_file.setFormatter(TextFormatter())
        to_screen.setLevel(logging.WARNING)
        to_screen.setFormatter(logging.Formatter(f"tfgpu: %(message)s; see {path}"))
        logger = logging.getLogger("tfgpujob")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.handlers = [to_file, to_screen]

    def _end(self, seconds: float) -> Exit:
        job = self._cluster.job
        if is_true(job, Condition.SUCCEEDED):
            self._screen.say(f"{self._key.name} succeeded in {duration(seconds)}{self._result()}", "green")
            return Exit.OK
        if is_true(job, Condition.FAILED):
            problem, advice = failure_of(job, again=self._again, logs=f"{self._folder.shown()}/logs")
            raise CliError(f"{self._key.name} failed: {problem}", advice, Exit.JOB_FAILED)
        step = self._folder.last_step()
        saved = f"no checkpoint is in {shown(self._folder.output)}" if step is None else f"saved after step {step}"
        self._screen.say(f"{self._key.name} is stopped, {saved}; continue with: {self._again}")
        return Exit.INTERRUPTED if self._signals[0] is signal.SIGINT else Exit.TERMINATED

    def _result(self) -> str:
        weights = of_weights([words for _, words in self._cluster.end_of.values()])
        own = {self._folder.logs, self._folder.scratch}
        if all(path in own for path in self._folder.output.iterdir()):  # as after a training loop of its own
            return f"{weights}; logs: {shown(self._folder.logs)}"
        return f"{weights}; results: {shown(self._folder.output)}{self._curves()}"

    def _curves(self) -> str:
        if not (self._folder.output / "tensorboard").is_dir():
            return ""
        runs = self._folder.path.parent
        where = "" if runs == RUNS.resolve() else f" {shlex.quote(shown(runs))}"
        return f"; curves: tfgpu ui --local{where}"


class _PatientHandler(logging.FileHandler):
    """Drops records that don't fit on a full disk; the user sees the errors that matter."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, delay=True)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of logging
        del record


def of_weights(last_words: Sequence[str]) -> str:
    """Whether the trainers' last lines have the same digest of weights; empty unless at least two have one.

    A trainer whose weights differ by more than rounding fails.
    """
    digests = [digest for words in last_words if (digest := _summary(words).get("weightsSha256"))]
    if len(digests) < 2:
        return ""
    if len({*digests}) == 1:
        return f", all {len(digests)} replicas have equal weights"
    return f", the weights of its {len(digests)} replicas differ in their last digits"


def failure_of(job: Object, *, again: str, logs: str) -> tuple[str, str]:
    """What ended the job, and what to do on this machine. `again`: the command that continues; `logs`: their folder."""
    failure = job["status"].get("lastFailure") or {}
    said = what_was_said(str(failure.get("message", "")), bundled="trainer" in job["spec"])
    action = str(failure.get("action", ""))
    first = _HERE.get(action, f"{action[:1].lower()}{action[1:]}".rstrip("."))
    if _NO_PACKAGE.match(said):
        first = _REQUIRE if "trainer" in job["spec"] else _INSTALL
    elif (absent := _ABSENT.search(said)) is not None and not absent[1].startswith("/") and Path(absent[1]).exists():
        first = _RUN_HERE
    elif failure.get("cause") == Diagnosis.DISK_FULL:
        first = _ROOM
    log = f"{failure['role']}-{failure['index']}.log" if "role" in failure else ""
    problem = f"{message(job, Condition.FAILED)}{f' {said}' if said else ''}"
    return problem, f"{f'{first}, ' if first else ''}then: {again} (log: {logs}/{log})"


def what_was_said(text: str, *, bundled: bool) -> str:
    """The line of lastFailure.message that names the cause: the trainer's first, else the last error.

    A trainer that failed before it could report leaves Python's traceback.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or (bundled and not lines[0].startswith("Traceback ")):
        return lines[0] if lines else ""
    number = next((i for i in reversed(range(len(lines))) if _ERROR.match(lines[i])), -1)
    return _to_its_end(lines[number:]).rstrip(":")


def _to_its_end(lines: Sequence[str]) -> str:
    """The first line; if a bracket is open in it, as in a printed value, with `…` and the line that closes it."""
    depth = 0
    for number, line in enumerate(lines):
        depth += sum(line.count(mark) for mark in "([{") - sum(line.count(mark) for mark in ")]}")
        if depth <= 0:
            return line if number == 0 else f"{lines[0]}…{line}"
    return lines[0]


def when_again(job: Object, now: datetime) -> str:
    """` Restart 1 of 6, in 9s.`; empty when nothing waits."""
    status, policy = job.get("status") or {}, job["spec"].get("runPolicy") or {}
    at = (status.get("retry") or {}).get("notBefore")
    limit = policy.get("backoffLimit", RunPolicy().backoff_limit)
    return f" Restart {status['restarts']} of {limit}, in {duration((moment(at) - now).total_seconds())}." if at else ""


def message(job: Object, condition: Condition) -> str:
    """A condition's message; empty if the condition is absent."""
    return next((str(c["message"]) for c in _conditions(job) if c["type"] == condition), "")


def replica_of(pod: Object) -> str:
    """`worker-0`."""
    labels = pod["metadata"]["labels"]
    return f"{labels[names.LABEL_REPLICA_TYPE]}-{labels[names.LABEL_REPLICA_INDEX]}"


def _now() -> datetime:
    return datetime.now(UTC)


def _conditions(job: Object) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = (job.get("status") or {}).get("conditions") or []
    return found


def _summary(words: str) -> Mapping[str, Any]:
    try:
        found = json.loads(words)
    except ValueError:
        return {}
    summary: Mapping[str, Any] = found.get("summary") or {} if isinstance(found, dict) else {}
    return summary
