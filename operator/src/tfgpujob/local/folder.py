"""The folder of a run: what the trainer writes, the logs, and the job's status, from which the run can go on.

A claim is a folder beside it, one for all jobs that name it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from tfgpujob.core.observed.snapshot import Object
from tfgpujob.exits import CliError

RUNS: Final = Path("runs")
"""Where the folders of runs are, if nobody says otherwise."""

_STATE: Final = "job.json"
CLAIMS: Final = "claims"
"""Beside them."""


class Folder:
    """`output` has checkpoints/, model.keras and run.json, or predictions/; `logs` a file a replica; `scratch` is ours.

    `output` is `path` itself, unless the job names a claim. Raises CliError for a path that claims are in.
    """

    def __init__(self, path: Path, claim: str | None = None, *, predicts: bool = False) -> None:
        if path.name == CLAIMS:
            raise CliError(f"{path}: the claims of all runs are in it", "choose another folder with --dir")
        self.path = path
        self.output = path if claim is None else path.parent / CLAIMS / claim
        self._written = self.output / ("predictions" if predicts else "checkpoints")
        self._predicts = predicts
        self.logs = path / "logs"
        self.scratch = path / ".tfgpu"
        self._state = self.scratch / _STATE
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Make it, for this process alone. Raises CliError when another one runs a job in it."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self.output.mkdir(parents=True, exist_ok=True)
            self.scratch.mkdir(exist_ok=True)
            self._lock = (self.scratch / "lock").open("w")
        except OSError as error:
            raise CliError(f"{self.path}: {error.strerror}", "choose another folder with --dir") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CliError(
                f"{self.path}: another tfgpu runs a job there", "wait for it, or choose another folder with --dir"
            ) from error

    def holds_a_run(self) -> bool:
        """Whether a trainer that is started here would go on with an older run."""
        return self._state.exists() or self._written.exists()

    def set_aside(self) -> Sequence[Path]:
        """Rename what an older run has written, so that a new one can have the names; nothing is deleted.

        Of a claim that is all, or for a job that predicts the predictions alone: the model in it is another job's.
        """
        own = [self.path]
        if self.output != self.path and self._written.exists():
            own.append(self._written if self._predicts else self.output)
        return [_renamed(path) for path in own]

    def job(self) -> Object | None:
        """The job as it was last written, with its status; None if there is none."""
        try:
            found: dict[str, Any] = json.loads(self._state.read_text())
        except (OSError, ValueError):
            return None
        return found

    def keep(self, job: Object) -> None:
        """Write the job, so that a run that is killed can go on. Raises OSError, and what was kept before stays."""
        temporary = self._state.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(job, indent=1))
            temporary.replace(self._state)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def last_step(self) -> int | None:
        """The step of the newest checkpoint; None if there is none."""
        steps = [int(path.parent.name.removeprefix("step-")) for path in self.output.glob("checkpoints/step-*/COMMIT")]
        return max(steps, default=None)

    def is_running(self) -> bool:
        """Whether a tfgpu runs the job in it now."""
        try:
            with (self.scratch / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def shown(self) -> str:
        """The path as a person would type it."""
        return shown(self.path)


def runs(parent: Path = RUNS) -> Sequence[tuple[Folder, Object]]:
    """The runs in that folder, with their jobs."""
    paths = sorted(state.parent.parent for state in parent.glob(f"*/.tfgpu/{_STATE}"))
    jobs = [(path, job) for path in paths if (job := Folder(path).job()) is not None]
    return [(Folder(path, claim_of(job), predicts=_predicts(job)), job) for path, job in jobs]


def _predicts(job: Object) -> bool:
    return ((job.get("spec") or {}).get("trainer") or {}).get("mode") == "predict"


def claim_of(job: Object) -> str | None:
    """The claim that the job's output goes to, with the folder in it if the job names one."""
    output = ((job.get("spec") or {}).get("trainer") or {}).get("output") or {}
    return "/".join(part for part in (output.get("claim"), output.get("subPath")) if part) or None


def shown(path: Path) -> str:
    """A path as a person would type it here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _renamed(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return path.rename(aside)
