"""Exit codes of `tfgpu`: API for scripts, so they are added to and never changed."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes; `meaning` is shown in the help and in the documentation."""

    meaning: str

    OK = 0, "done, or: the job succeeded"
    JOB_FAILED = 1, "the job failed"
    USAGE = 2, "a wrong flag, a job that would be refused, or something to install first; nothing was started"
    NOT_FOUND = 3, "no such job or file"
    CLUSTER = 4, "the cluster can't be reached, or does not allow it"
    TIMEOUT = 5, "not finished within --timeout; the job stays as it is"
    NO_SPACE = 6, "what is asked for can't be written: the disk is full"
    INTERRUPTED = 130, "stopped by ^C"
    TERMINATED = 143, "stopped by SIGTERM"

    def __new__(cls, code: int, meaning: str) -> Exit:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


class CliError(Exception):
    """Ends `tfgpu` with one line: the problem and the fix."""

    def __init__(self, problem: str, fix: str = "", code: Exit = Exit.USAGE) -> None:
        super().__init__(f"{problem}; {fix}" if fix else problem)
        self.code = code
