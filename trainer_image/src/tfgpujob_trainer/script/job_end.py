"""The end of the job inside a script, which no `except Exception` there may take for one of the script's errors."""

from __future__ import annotations

from tfgpujob_trainer.contract.exits import ExitCode, NotFiniteError, TrainerError, classify


class JobEndError(BaseException):
    """Raised in place of `error`; like SystemExit it is no Exception."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class JobEnd:
    """The first error of a run of the script that ends the job: a stop, a lost peer, what is not taken over."""

    def __init__(self, *, has_peers: bool) -> None:
        self._has_peers = has_peers
        self.error: Exception | None = None

    def check(self) -> None:
        """Raise it again, where the script has gone on after it, as a bare `except` can."""
        if self.error is not None:
            raise JobEndError(self.error)

    def found(self, error: Exception) -> bool:
        """Whether the error ends the job. Any other is the script's to handle, as a search does with a loss of NaN."""
        ends = isinstance(error, TrainerError) and not isinstance(error, NotFiniteError)
        if ends or classify(error, has_peers=self._has_peers).code == ExitCode.PEER_FAILURE:
            self.error = self.error or error
            return True
        return False
