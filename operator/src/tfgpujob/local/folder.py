"""The folder of a run: the trainer's output, the logs, and the job with its status, from which the run can be resumed.

A claim is a folder beside it, shared by all jobs that name it.
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
"""Default parent of the folders of runs."""

_STATE: Final = "job.json"
CLAIMS: Final = "claims"
"""Folder of claims, beside those of runs."""


class Folder:
    """`output` has checkpoints/, model.keras and run.json, or predictions/; `logs` has a file for each replica;
    `scratch` is for this tool.

    `output` is `path` itself, unless the job names a claim. Raises CliError for the folder of claims.
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
        """Create it and lock it for this process. Raises CliError when another process runs a job in it."""
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
        """True if a trainer that is started here would continue an older run."""
        return self._state.exists() or self._written.exists()

    def set_aside(self) -> Sequence[Path]:
        """Rename the output of an older run, so that a new one can use the names; nothing is deleted.

        For a job that predicts, and whose output is a claim, only the predictions are renamed: the model is another
        job's.
        """
        own = [self.path]
        if self.output != self.path and self._written.exists():
            own.append(self._written if self._predicts else self.output)
        return [_renamed(path) for path in own]

    def job(self) -> Object | None:
        """The job with its status, as it was last written; None if there is none."""
        try:
            found: dict[str, Any] = json.loads(self._state.read_text())
        except (OSError, ValueError):
            return None
        return found

    def keep(self, job: Object) -> None:
        """Write the job, so that a killed run can be resumed. If it raises OSError, the previous file is unchanged."""
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
        """True if a tfgpu process runs the job now."""
        try:
            with (self.scratch / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def wrote(self, files: Sequence[Path]) -> bool:
        """True if all these files were last written while the job ran here: a script writes beside itself."""
        try:
            began, ended = ((self.scratch / name).stat().st_mtime for name in ("lock", _STATE))
            return all(began <= file.stat().st_mtime <= ended for file in files)
        except OSError:
            return False

    def shown(self) -> str:
        """The path as a user would type it."""
        return shown(self.path)


def runs(parent: Path = RUNS) -> Sequence[tuple[Folder, Object]]:
    """The runs in that folder, with their jobs."""
    paths = sorted(state.parent.parent for state in parent.glob(f"*/.tfgpu/{_STATE}"))
    jobs = [(path, job) for path in paths if (job := Folder(path).job()) is not None]
    return [(Folder(path, claim_of(job), predicts=_predicts(job)), job) for path, job in jobs]


def _predicts(job: Object) -> bool:
    return ((job.get("spec") or {}).get("trainer") or {}).get("mode") == "predict"


def claim_of(job: Object) -> str | None:
    """The claim of the job's output, with the folder in it if the job names one."""
    output = ((job.get("spec") or {}).get("trainer") or {}).get("output") or {}
    return "/".join(part for part in (output.get("claim"), output.get("subPath")) if part) or None


def shown(path: Path) -> str:
    """A path as a user would type it here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _renamed(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return path.rename(aside)
