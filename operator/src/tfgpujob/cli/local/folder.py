"""The folder of a run: what the trainer writes, the logs, and the job's status, from which the run can go on."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from tfgpujob.cli.exits import CliError
from tfgpujob.core.snapshot import Object


class Folder:
    """`path` has checkpoints/, model.keras and run.json; `logs` a file a replica; `scratch` is ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.scratch = path / ".tfgpu"
        self._state = self.scratch / "job.json"
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Make it, for this process alone. Raises CliError when another one runs a job in it."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
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
        return self._state.exists() or (self.path / "checkpoints").exists()

    def set_aside(self) -> Path:
        """Rename it, so that a new run can have the name; nothing is deleted."""
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.{number}")).exists():
            number += 1
        self.path.rename(aside)
        return aside

    def job(self) -> Object | None:
        """The job as it was last written, with its status; None if there is none."""
        try:
            found: dict[str, Any] = json.loads(self._state.read_text())
        except (OSError, ValueError):
            return None
        return found

    def keep(self, job: Object) -> None:
        """Write the job, so that a run that is killed can go on."""
        temporary = self._state.with_suffix(".new")
        temporary.write_text(json.dumps(job, indent=1))
        temporary.replace(self._state)

    def last_step(self) -> int | None:
        """The step of the newest checkpoint; None if there is none."""
        steps = [int(path.parent.name.removeprefix("step-")) for path in self.path.glob("checkpoints/step-*/COMMIT")]
        return max(steps, default=None)

    def shown(self) -> str:
        """The path as a person would type it."""
        return os.path.relpath(self.path) if self.path.is_relative_to(Path.cwd()) else str(self.path)
