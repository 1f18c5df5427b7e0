"""The end of the job inside a script; an `except Exception` there must not handle it as an error of the script."""

from __future__ import annotations

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.contract.exits import NotFiniteError, TrainerError, classify


class JobEndError(BaseException):
    """Raised instead of `error`; like SystemExit it is no Exception."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class JobEnd:
    """The first error of a run of the script that ends the job: a stop, a lost peer, an unsupported call."""

    def __init__(self, *, has_peers: bool) -> None:
        self._has_peers = has_peers
        self.error: Exception | None = None
        self.in_a_thread: Exception | None = None
        """The refusal of a call in a thread, which ends the job only if the script makes no other call."""

    def check(self) -> None:
        """Raise it again, if the script continued after it, as a bare `except` can."""
        if self.error is not None:
            raise JobEndError(self.error)

    def found(self, error: Exception) -> bool:
        """True if the error ends the job. Any other is the script's to handle, as a search handles a NaN loss."""
        ends = isinstance(error, TrainerError) and not isinstance(error, NotFiniteError)
        if ends or classify(error, has_peers=self._has_peers).code == ExitCode.PEER_FAILURE:
            self.error = self.error or error
            return True
        return False
